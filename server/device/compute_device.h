// A device of the daemon: its memory, and the arithmetic on shards in it.
//
// A broken device (an illegal address, a lost GPU, a stream that never ends) answers every later call with the error
// that broke it; health() returns that error at once, and passes it to its listener.
#ifndef PARAMSHARD_SERVER_DEVICE_COMPUTE_DEVICE_H_
#define PARAMSHARD_SERVER_DEVICE_COMPUTE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/shared_memory/file_descriptor.h"
#include "kernels/formats/codec.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/muon.h"
#include "kernels/optim/muon_memory.h"
#include "kernels/optim/state_bands.h"
#include "kernels/optim/step_progress.h"
#include "kernels/random/initial_values.h"
#include "kernels/reduce/gradient.h"
#include "kernels/reduce/sum_of_squares.h"
#include "server/device/device.h"
#include "server/device/device_health.h"
#include "server/device/host_view.h"
#include "server/device/memory.h"

namespace paramshard::server {

// One extent's tensors, at addresses of the device: `rows` x `columns` elements each. The upper half of a master with a
// remainder is the row-wise plane, or separate weights, which the plane copies. Only separate weights can move.
struct ExtentTensors {
  MutableGradient gradient;  // null where the extent takes no step
  OptimizerState state;
  int64_t rows = 0;
  int64_t columns = 0;
  Encoding encoding;
  MutablePlane row_wise;
  MutablePlane column_wise;               // data null where the format has no such plane
  std::optional<MuonMatrices> muon = {};  // set where Muon makes the steps

  int64_t elements() const { return rows * columns; }
};

// Returns what the memory for Muon's updates and products depends on.
std::vector<MuonExtent> MuonExtentsOf(absl::Span<const ExtentTensors> tensors);

// Largest number of sources of one sum on a GPU.
inline constexpr int kMostSumSources = 16;

// One call of SumGradients (kernels/reduce/gradient_sum.h).
struct SumTask {
  std::vector<const void*> sources;
  GradientType type = GradientType::kFP32;
  int64_t count = 0;
  bool overwrite = false;
  MutableGradient accumulator;
};

// How steps move the state (kernels/optim/state_bands.h). Without bands it stays where it is.
struct StateMoves {
  std::vector<BandStart> bands = {};
  int64_t distance = 0;  // bytes by which a step moves every array
  int64_t position = 0;  // of the state at first: 0, or `distance`
};

// The arithmetic of one shard. Every call blocks until its work is done. One call at a time.
class ShardArithmetic {
 public:
  virtual ~ShardArithmetic() = default;

  // Number of bytes by which the state lies behind the tensors' addresses now, in every array.
  int64_t position() const { return position_; }

  // Engine of Muon's products, and its version: what the bytes of updates depend on besides the kind of device. Empty if
  // Muon steps no extent.
  virtual std::string products() const { return ""; }
  // Bytes that it holds for Muon's updates and products: ComputeDevice::MuonBytes() of its tensors.
  virtual int64_t muon_bytes() const = 0;

  // Fills the masters, extent by extent. `parameter_index` counts over the model, `first_element` within the parameter.
  struct Initial {
    InitialValue value;
    int64_t parameter_index = 0;
    int64_t first_element = 0;
  };
  virtual absl::Status Fill(uint64_t seed, absl::Span<const Initial> initials) = 0;

  // Returns OK, or the error with which the call ends early. It is called before each extent, on a GPU before the
  // first, and does not block.
  using CancelCheck = absl::FunctionRef<absl::Status()>;
  static absl::Status NeverCancelled() { return absl::OkStatus(); }

  // Encodes every extent's planes from its master, except a plane that is a part of the master; from weights it copies.
  // `scalings` has an entry for each extent, here and below. An error leaves some planes as they were.
  virtual absl::Status EncodePlanes(absl::Span<const TensorScaling> scalings, CancelCheck check_cancelled) = 0;
  absl::Status EncodePlanes(absl::Span<const TensorScaling> scalings) { return EncodePlanes(scalings, NeverCancelled); }

  // Like above, for the `active` extents, whose format EncodesAfterAmax().
  virtual absl::Status EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings) = 0;

  // Returns the amaxes of the masters of extents whose format NeedsAmax(), and zeros for the others.
  virtual absl::StatusOr<std::vector<float>> MeasureAmaxes(CancelCheck check_cancelled) = 0;
  absl::StatusOr<std::vector<float>> MeasureAmaxes() { return MeasureAmaxes(NeverCancelled); }

  // Makes `sums`, each for a whole `active` extent, and returns the sums of squares of the gradients of all active
  // extents; zeros for the others. On a GPU in one pass. INVALID_ARGUMENT for a sum for anything else, or of more than
  // kMostSumSources sources on a GPU.
  virtual absl::StatusOr<std::vector<SquareSum>> SumSquares(const std::vector<bool>& active,
                                                            absl::Span<const SumTask> sums) = 0;

  // Takes one fused step on every extent whose entry has a value; moves the state if it has bands and an entry has a
  // value. The bytes of the other extents stay, except for their place, and so do planes of formats that
  // EncodesAfterAmax(). Returns the amaxes of the new masters like MeasureAmaxes(), zeros for extents that took no
  // step; empty if no extent's format NeedsAmax(). After an error the state is partly old and partly new.
  //
  // `progress` says where the step records its progress, in memory that is open to the device (OpenHostMemory), and
  // which part of the same step was done before, in the same memory, by a process that has ended and whose GPU has
  // stopped. State and position afterwards are the result of the whole step. The amaxes cover only the bands that were
  // left, and planes of the other bands stay: call MeasureAmaxes() and, if planes are new, EncodePlanes() afterwards.
  // Without bands the step is the one band of lane 0: if it is done, nothing is left. If no entry has a value, nothing
  // is recorded.
  virtual absl::StatusOr<std::vector<float>> Step(absl::Span<const std::optional<OptimizerStep>> steps,
                                                  absl::Span<const TensorScaling> scalings,
                                                  const StepProgress& progress) = 0;

 protected:
  explicit ShardArithmetic(int64_t position) : position_(position) {}
  void set_position(int64_t position) { position_ = position; }

 private:
  int64_t position_;
};

// Largest number of elements that are filled at a time in masters with remainders: they are never stored as float32,
// and are filled in parts by way of scratch memory.
inline constexpr int64_t kFillElements = int64_t{1} << 20;

// Copies and sums for an engine, in memory that the device reaches. Blocks until the work is done. One thread at a
// time.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  struct CopyTask {
    void* target = nullptr;
    const void* source = nullptr;
    int64_t size_bytes = 0;
  };
  // Copies, in any order, and then sums, in any order; accumulators must not overlap. INVALID_ARGUMENT for more than
  // kMostSumSources on a GPU.
  virtual absl::Status Run(absl::Span<const CopyTask> copies, absl::Span<const SumTask> sums) = 0;
  absl::Status Copy(absl::Span<const CopyTask> tasks) { return Run(tasks, {}); }
  absl::Status Sum(absl::Span<const SumTask> tasks) { return Run({}, tasks); }
};

// Returns the sum that makes each tensor's gradient, or null if none does. INVALID_ARGUMENT for a sum that makes none
// of the active tensors' gradients, or only a part of one.
absl::StatusOr<std::vector<const SumTask*>> MatchSums(absl::Span<const ExtentTensors> tensors,
                                                      const std::vector<bool>& active, absl::Span<const SumTask> sums);

// INVALID_ARGUMENT for moves that the tensors cannot make: errors of CheckBands(), a distance or a position that no
// step leads to, or a master with a remainder and no weights.
absl::Status CheckMoves(absl::Span<const ExtentTensors> tensors, const StateMoves& moves);

// Thread-safe.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  const Device& id() const { return id_; }
  std::string Name() const { return id_.Name(); }
  // 16 bytes that name the GPU in every process; empty for cpu devices.
  virtual std::string gpu_uuid() const { return ""; }

  DeviceHealth& health() { return health_; }
  const DeviceHealth& health() const { return health_; }

  // Allocates zeroed memory; memory that trainers share is also open to the daemon's other devices. RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) = 0;
  // Adopts memory that another process allocated as kKept on the same device, with its content: see Memory::Adopt. On a
  // GPU the driver checks the descriptor; DATA_LOSS also for memory of another GPU.
  virtual absl::StatusOr<Memory> Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) = 0;
  // Bytes that could be allocated now.
  virtual int64_t AvailableBytes() const = 0;

  // Lets the device write the words in `page`, which is host memory; null if it needs no registration. The registration
  // ends with the object, before the memory. One GPU of a process registers a page, once, and all GPUs may write it.
  virtual absl::StatusOr<std::unique_ptr<Memory::Owner>> OpenHostMemory(const Memory& page) = 0;

  // Passes the bytes to `sink` in order, in pieces of any size that are valid until it returns. Many callers at once
  // may wait for each other's sinks, so sinks must be short, and must not read from this device.
  using Sink = absl::FunctionRef<void(absl::Span<const uint8_t>)>;
  virtual absl::Status ReadTo(const uint8_t* data, int64_t size_bytes, Sink sink) const = 0;
  // Returns the bytes in place or as a copy, for longer use.
  virtual absl::StatusOr<HostView> Read(const uint8_t* data, int64_t size_bytes) const = 0;
  virtual absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes) const = 0;

  // `tensors` stay in place for the object's life, except for `moves`. Errors of CheckMoves().
  virtual absl::StatusOr<std::unique_ptr<ShardArithmetic>> MakeArithmetic(std::vector<ExtentTensors> tensors,
                                                                          StateMoves moves) = 0;

  // Returns the bytes that MakeArithmetic() takes for Muon's updates and products.
  virtual int64_t MuonBytes(absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands) const = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue() = 0;

 protected:
  explicit ComputeDevice(const Device& id) : id_(id) {}

 private:
  const Device id_;
  DeviceHealth health_;
};

// Opens the devices of one daemon. FAILED_PRECONDITION if a GPU does not exist, or cannot reach another GPU's memory;
// UNIMPLEMENTED for GPUs in a build without CUDA.
absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> OpenDevices(absl::Span<const Device> devices);

std::unique_ptr<ComputeDevice> MakeCpuDevice(int index);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_COMPUTE_DEVICE_H_
