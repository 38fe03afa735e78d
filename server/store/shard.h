// One rank's part of a model: masters, moments, gradient accumulators, and the arena of planes.
#ifndef PARAMSHARD_SERVER_STORE_SHARD_H_
#define PARAMSHARD_SERVER_STORE_SHARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kernels/formats/codec.h"
#include "kernels/optim/adam.h"
#include "kernels/reduce/sum_of_squares.h"
#include "server/device/compute_device.h"
#include "server/layout/layout.h"

namespace paramshard::server {

// Hyper-parameters of one group for one step.
struct GroupStep {
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
  float weight_decay = 0;
};

// What a shard needs to apply one commit.
struct StepParameters {
  std::vector<GroupStep> groups;
  float gradient_scale = 1;  // k of docs/numerics.md: unscaling, mean and clip in one factor
};

// Which tensor of the optimizer's state.
enum class StateTensor : uint8_t { kMaster, kExpAvg, kExpAvgSq };
inline constexpr int kStateTensorCount = 3;

// The rows of one parameter that the shard owns. Never empty.
struct ShardExtent {
  int unit = 0;
  int parameter = 0;  // within the unit
  RowRange rows;
  int64_t elements = 0;
  int64_t master_offset = 0;      // in elements; also of the gradient accumulator
  int64_t exp_avg_offset = 0;     // in bytes
  int64_t exp_avg_sq_offset = 0;  // in bytes
  int64_t step = 0;               // optimizer steps taken
  bool has_gradient = false;      // since the last commit
};

// Bytes by memory class.
struct ShardBytes {
  int64_t master = 0;
  int64_t exp_avg = 0;
  int64_t exp_avg_sq = 0;
  int64_t gradients = 0;
  int64_t planes = 0;
  int64_t Total() const { return master + exp_avg + exp_avg_sq + gradients + planes; }
  ShardBytes& operator+=(const ShardBytes& other);
};

// Thread-safe: a step excludes readers of the state, readers do not exclude each other. Accumulators belong to the push
// thread of the rank. Versions are the model's business.
class Shard {
 public:
  // What a shard will take, before anything is allocated.
  static ShardBytes SizeOf(const ModelSpec& spec, const Layout& layout, int rank);

  // Allocates on `device` and fills in initial values; moments are zero, planes encoded. `spec`, `layout` and `device`
  // outlive the shard; `rank` is the rank in the shard group. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(const ModelSpec& spec, const Layout& layout, int rank,
                                                       ComputeDevice* device);

  ComputeDevice& device() const { return *device_; }

  const std::vector<ShardExtent>& extents() const { return extents_; }
  // The extent of a parameter, null when the shard owns none of it.
  const ShardExtent* Find(int unit, int parameter) const;
  const Memory& planes() const { return planes_; }
  ShardBytes bytes() const { return SizeOf(spec_, layout_, rank_); }

  // Where a push of a unit adds: one entry for each parameter, null where the shard owns nothing or the push is absent.
  // Marks the present ones; `overwrite` is true at the first push of a parameter since the last commit.
  struct PushTarget {
    std::vector<float*> accumulators;
    std::unique_ptr<bool[]> overwrite;
  };
  PushTarget BeginPush(int unit, absl::Span<const int> absent_parameters);

  // Over all accumulators with gradients: extents in parameter order, their sums added in double.
  absl::StatusOr<SquareSum> SumGradients() const;
  // Forgets the gradients since the last commit.
  void DropGradients();
  // One optimizer step on every parameter that has a gradient, encoding its planes; then drops gradients.
  absl::Status Step(const StepParameters& parameters);
  // Encodes every plane anew from the masters.
  absl::Status EncodePlanes();

  // Readers hold this shared while they look at an extent's state. Views end with it.
  absl::Mutex& mutex() const ABSL_LOCK_RETURNED(mu_) { return mu_; }
  // Steps that this shard has applied: while a commit is being applied shards differ for a moment. Requires mutex().
  int64_t version() const { return version_; }
  // Decoded to fp32.
  absl::StatusOr<std::vector<float>> Read(const ShardExtent& extent, StateTensor tensor) const;
  // The stored bytes.
  absl::StatusOr<HostView> Stored(const ShardExtent& extent, StateTensor tensor) const;
  // Bytes of both planes, in the order row data, row scales, column data, column scales.
  absl::StatusOr<std::vector<HostView>> PlaneBytes(const ShardExtent& extent) const;
  // Sizes of the same.
  int64_t PlaneSize(const ShardExtent& extent) const;
  // Encodes the extent again, on the host, and compares with what is served.
  absl::StatusOr<bool> PlanesMatch(const ShardExtent& extent) const;

  // Replaces one extent's tensor with decoded values, without encoding planes: call EncodePlanes after the last.
  absl::Status Write(const ShardExtent& extent, StateTensor tensor, absl::Span<const float> values);
  void SetStep(const ShardExtent& extent, int64_t step);
  void SetVersion(int64_t version);

  const ParameterSpec& Spec(const ShardExtent& extent) const {
    return spec_.units[extent.unit].parameters[extent.parameter];
  }

 private:
  Shard(const ModelSpec& spec, const Layout& layout, int rank, ComputeDevice* device);
  absl::Status Allocate();
  absl::Status MakeArithmetic();
  absl::Status FillInitialValues();
  ExtentTensors Tensors(const ShardExtent& extent) const;
  AdamStep StepOf(const ShardExtent& extent, const StepParameters& parameters) const;
  MutablePlane PlaneOf(const ShardExtent& extent, Plane plane) const;
  // Data and scales of the planes that the extent has, as PlaneBytes orders them.
  std::vector<absl::Span<const uint8_t>> PlaneSpans(const ShardExtent& extent) const;
  AdamState State(const ShardExtent& extent) const;
  float* Gradient(const ShardExtent& extent) const;
  uint8_t* Tensor(const ShardExtent& extent, StateTensor tensor) const;
  MomentType Type(const ShardExtent& extent, StateTensor tensor) const;

  // Constant after Create.
  const ModelSpec& spec_;
  const Layout& layout_;
  const int rank_;
  ComputeDevice* const device_;
  std::vector<std::vector<int>> extent_index_;  // [unit][parameter] -> index in extents_, or -1

  mutable absl::Mutex mu_;
  std::vector<ShardExtent> extents_;
  int64_t version_ = 0;
  Memory master_, exp_avg_, exp_avg_sq_, gradients_, planes_;
  std::unique_ptr<ShardArithmetic> arithmetic_;  // on extents_ in these memories
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_SHARD_H_
