// One rank's part of a model: masters, moments, gradient accumulators, and the arena of planes.
#ifndef PARAMSHARD_SERVER_STATE_SHARD_H_
#define PARAMSHARD_SERVER_STATE_SHARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/state_tensor.h"
#include "kernels/formats/codec.h"
#include "kernels/optim/step_progress.h"
#include "server/device/compute_device.h"
#include "server/device/state_memory.h"
#include "server/state/extent_arithmetic.h"
#include "server/state/frozen_extents.h"
#include "server/state/publication.h"
#include "server/state/scaling_book.h"
#include "server/state/shard_extents.h"
#include "server/state/shard_gradients.h"
#include "server/state/shard_memory.h"
#include "server/state/shard_planes.h"
#include "server/state/shard_step.h"
#include "server/state/state_arrays.h"

namespace paramshard::server {

// Owns the parts of a shard, and the mutex that guards the state in them:
//
//   shard.extents().Find(unit, parameter);     // ShardExtents: which rows the shard owns
//   shard.memory().planes();                   // ShardMemory: where everything lies
//   shard.gradients().BeginPush(unit);         // ShardGradients: what is accumulated for the next step
//   absl::ReaderMutexLock lock(&shard.mutex());
//   shard.arrays().Read(extent, tensor);       // StateArrays: masters and moments
//   PlaneBytes(shard.memory(), extent);        // shard_planes.h
//
// Thread-safe: a step excludes readers of the state, readers do not exclude each other. The push thread of the rank
// alone calls Step, besides gradients(). The model sets versions and generations.
class Shard {
 public:
  // Where the state lies.
  struct Options {
    MovePolicy moves = {};
    StateMemory* memory = nullptr;  // outlives the shard; null: memory of its own
    int world_rank = 0;             // in the names of the memory's pieces
    int64_t position = 0;           // of a state that is adopted
    // Calls that change planes require that it is_writing(). Outlives the shard; null: planes are not published.
    const Publication* publication = nullptr;
  };
  // Allocates on `device` and fills in initial values; moments are zero, planes not yet encoded. A state that the
  // memory has adopted stays as it is. `spec`, `layout` and `device` outlive the shard; `rank` is the rank in the shard
  // group. RESOURCE_EXHAUSTED; DATA_LOSS adopted memory that is not this state's.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(const ModelSpec& spec, const Layout& layout, int rank,
                                                       ComputeDevice* device, const Options& options);
  static absl::StatusOr<std::unique_ptr<Shard>> Create(const ModelSpec& spec, const Layout& layout, int rank,
                                                       ComputeDevice* device) {
    return Create(spec, layout, rank, device, Options());
  }

  const ShardExtents& extents() const { return memory_->extents(); }
  const ShardMemory& memory() const { return *memory_; }
  ShardGradients& gradients() { return gradients_; }
  // Readers hold the mutex shared, here as for planes.
  const StateArrays& arrays() const { return arrays_; }

  // One optimizer step on every parameter that has a gradient, encoding its planes; then drops gradients. Amaxes of
  // what stepped go to `book`. Planes of formats that EncodesAfterAmax() stay as they were: EncodeAfterAmax follows
  // when all shards have stepped and the book is settled.
  // `progress` receives how far the step is. In a step that another process has begun amaxes are only those of the rest
  // of the step: MeasureAmaxes follows when all shards have stepped.
  absl::Status Step(const StepParameters& parameters, const StepProgress& progress, ScalingBook& book);
  absl::Status Step(const StepParameters& parameters, ScalingBook& book) { return Step(parameters, {}, book); }
  absl::Status EncodeAfterAmax(const ScalingBook& book);
  // Adds the amaxes of the masters to `book`; without a master, those of what its planes are yet to be made of.
  // `check_cancelled` is asked as ShardArithmetic says, here and below, with the shard's lock held.
  using CancelCheck = ShardArithmetic::CancelCheck;
  absl::Status MeasureAmaxes(ScalingBook& book, CancelCheck check_cancelled = ShardArithmetic::NeverCancelled) const;
  // Encodes every plane anew from the masters, with what `book` says. Without a master, if something was written.
  absl::Status EncodePlanes(const ScalingBook& book, CancelCheck check_cancelled = ShardArithmetic::NeverCancelled);

  // Copies the planes of what has no master to where they outlive the process, or takes them from there: what the
  // planes would else be made of is then forgotten. Nothing where steps do not move the state.
  absl::Status KeepPlanes() const;
  absl::Status BringBackPlanes();

  // Takes what writing all rows of these extents, as far as they have no master, and making planes of them will take:
  // neither then fails for want of memory. RESOURCE_EXHAUSTED, and what was taken is to be given up all the same.
  absl::Status MakeRoom(absl::Span<const ShardExtent* const> extents);
  void GiveUpRoom();

  // Readers hold this shared while they look at an extent's state. Views end with it.
  absl::Mutex& mutex() const ABSL_LOCK_RETURNED(mu_) { return mu_; }
  // Steps that this shard has applied: while a commit is being applied shards differ for a moment.
  int64_t version() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return version_; }
  // The model's generation, which moves before anything is replaced.
  int64_t generation() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return generation_; }
  // Where the trainable state lies: see StateMoves.
  int64_t position() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return trainable_->position(); }
  // See ShardArithmetic::products().
  std::string products() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return trainable_->products(); }
  // Bytes for Muon's updates and products, beside extents().bytes(): ComputeDevice::MuonBytes() of MuonExtentsOf().
  int64_t muon_bytes() const { return muon_bytes_; }
  const ExtentNumbers& numbers(const ShardExtent& extent) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return numbers_[extents().IndexOf(extent)];
  }
  // Sets the steps of parameters of which the shard has rows, at the parameter's place in the model.
  void CollectSteps(absl::Span<int64_t> steps) const ABSL_LOCKS_EXCLUDED(mu_);

  // Replaces rows of one extent's tensor, without encoding planes: call EncodePlanes after the last. (The upper half of
  // a master with remainder may be a plane, and is replaced.) `rows` are the parameter's, and lie in the extent.
  // Without a master, rows are kept in host memory until EncodePlanes, and all of the extent are to be written.
  absl::Status WriteRows(const ShardExtent& extent, StateTensor tensor, RowRange rows, absl::Span<const float> values);
  // Does the same with bytes as StateArrays::Stored() gives them, in a form that RowOf() has for the parameter.
  absl::Status WriteStoredRows(const ShardExtent& extent, StateTensor tensor, TensorForm form, RowRange rows,
                               absl::Span<const uint8_t> bytes);
  // Replaces a plane's bytes of a frozen parameter without a master. `rows` are whole rows of what is given: any for
  // data, rows of whole blocks for scales, the extent's for what is one of the whole tensor. Bytes are as PlaneBytes()
  // of these rows gives them, and nothing is made of rows that were written.
  absl::Status WritePlane(const ShardExtent& extent, Plane plane, RowRange rows, const PlaneContent& content);
  // Replaces all rows.
  absl::Status Write(const ShardExtent& extent, StateTensor tensor, absl::Span<const float> values) {
    return WriteRows(extent, tensor, extent.rows, values);
  }
  void SetStep(const ShardExtent& extent, int64_t step);
  // Sets steps in the order of CollectSteps().
  void SetSteps(absl::Span<const int64_t> steps);
  void SetVersion(int64_t version);
  void SetGeneration(int64_t generation);

 private:
  Shard(std::unique_ptr<ShardMemory> memory, std::unique_ptr<ExtentArithmetic> trainable,
        std::unique_ptr<FrozenExtents> frozen, const Publication* publication);

  // Ends the program if a reader may hold the planes that are about to change: a bug of the caller.
  void CheckWriting() const;

  mutable absl::Mutex mu_;
  // In the order in which each needs those before it. Addresses are constant; the bytes of masters, moments and planes
  // are guarded by mu_.
  const Publication* const publication_;
  const std::unique_ptr<const ShardMemory> memory_;
  const std::unique_ptr<ExtentArithmetic> trainable_ ABSL_PT_GUARDED_BY(mu_);
  const std::unique_ptr<FrozenExtents> frozen_ ABSL_PT_GUARDED_BY(mu_);
  StateArrays arrays_;
  ShardGradients gradients_;
  const int64_t muon_bytes_;
  std::vector<ExtentNumbers> numbers_ ABSL_GUARDED_BY(mu_);  // by extent
  int64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SHARD_H_
