// One rank's part of a model: masters, moments, gradient accumulators, and the arena of planes.
//
// A master with a remainder has its upper half in the arena, unless steps move it: it is the row-wise plane, which no
// encoding writes. On the host its pages are sealed against trainers' writes; on a GPU the state then rests on the
// client library's promise to map planes read-only.
//
// A frozen parameter has no moments and no accumulator, and steps leave it alone. Without a master it consists of its
// planes: they are made once from its initial values, or from rows that were written. Where steps move the state the
// planes have a copy (KeepPlanes), for a server that adopts the state.
#ifndef PARAMSHARD_SERVER_STATE_SHARD_H_
#define PARAMSHARD_SERVER_STATE_SHARD_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/state_tensor.h"
#include "kernels/formats/codec.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/hyperparameters.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/reduce/sum_of_squares.h"
#include "server/device/compute_device.h"
#include "server/device/state_memory.h"
#include "server/state/scaling_book.h"
#include "server/state/shard_placement.h"
#include "server/state/state_move_record.h"

namespace paramshard::server {

// Holds what a shard needs to apply one commit.
struct StepParameters {
  std::vector<Hyperparameters> groups;
  float gradient_scale = 1;  // k of docs/reference/numerics.md: unscaling, mean and clip in one factor
};

// Whole rows of an extent, or a part of one row that begins at a multiple of kMomentBlockSize and ends at one or with
// the row: what lies in one piece in every array in which a tensor is stored.
struct ExtentPart {
  RowRange rows;  // of the parameter
  int64_t first_column = 0;
  int64_t columns = 0;
};

// One plane's bytes as they are served; empty where the format has none.
struct PlaneViews {
  HostView data, scales, amax;
};

// Thread-safe: a step excludes readers of the state, readers do not exclude each other. Accumulators, and which of them
// hold a gradient, belong to the push thread of the rank: it alone calls BeginPush, SumSquares, Step and, while an
// epoch runs, DropGradients. The model sets versions and generations.
class Shard {
 public:
  // Where the state lies.
  struct Options {
    MovePolicy moves = {};
    StateMemory* memory = nullptr;  // outlives the shard; null: memory of its own
    int world_rank = 0;             // in the names of the memory's pieces
    int64_t position = 0;           // of a state that is adopted
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

  ComputeDevice& device() const { return *device_; }

  // Extents of trainable parameters first, in the order of the model, then of frozen ones.
  const std::vector<ShardExtent>& extents() const { return extents_; }
  // Returns the extent of a parameter, or null if the shard owns none of it.
  const ShardExtent* Find(int unit, int parameter) const;
  const Memory& planes() const { return planes_; }
  const ShardBytes& bytes() const { return placement_.bytes; }

  // Returns where a push of a unit adds: one entry for each parameter, null where the shard owns nothing, the parameter
  // is frozen or the push is absent. Marks the present ones; `overwrite` is true at the first push of a parameter since
  // the last commit.
  struct PushTarget {
    std::vector<MutableGradient> accumulators;
    std::unique_ptr<bool[]> overwrite;
  };
  PushTarget BeginPush(int unit, absl::Span<const int> absent_parameters);

  // Makes the sums of gradients that an engine has left (Collectives::TakeSums). Returns the sum of squares of all
  // accumulators with gradients: extents in parameter order, their sums added in double.
  absl::StatusOr<SquareSum> SumSquares(absl::Span<const SumTask> left) const;
  // Sets `has_gradient` at the parameter's place in the model. AdoptGradients goes on with gradients that another
  // process has left in the accumulators.
  void MarkGradients(std::vector<bool>& has_gradient) const;
  void AdoptGradients(const std::vector<bool>& has_gradient);
  // Forgets the gradients since the last commit: the next push of a parameter overwrites them.
  void DropGradients();
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
  int64_t plane_copy_bytes() const { return placement_.plane_copy_bytes; }

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
  // All that says where the state lies, and how the next step moves it.
  StateMoveRecord MoveRecord() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return RecordMoves(placement_, arithmetic_->position());
  }
  // Where the trainable state lies: see StateMoves.
  int64_t position() const ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the steps of parameters of which the shard has rows, at the parameter's place in the model.
  void CollectSteps(absl::Span<int64_t> steps) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of optimizer steps that an extent has taken.
  int64_t step(const ShardExtent& extent) const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return StateOf(extent).step; }
  // Returns what its planes were encoded with.
  const TensorScaling& scaling(const ShardExtent& extent) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return StateOf(extent).scaling;
  }
  // Returns values in fp32: without a master, its decoded row-wise plane; empty for a moment that the parameter does
  // not have.
  absl::StatusOr<std::vector<float>> Read(const ShardExtent& extent, StateTensor tensor) const {
    return Read(extent, tensor, Whole(extent));
  }
  absl::StatusOr<std::vector<float>> Read(const ShardExtent& extent, StateTensor tensor, const ExtentPart& part) const;
  // Returns the stored bytes: elements, then scales where the type has them; of a master with remainder the upper
  // halves, then the remainders. Empty if the parameter does not have the tensor.
  absl::StatusOr<std::vector<HostView>> Stored(const ShardExtent& extent, StateTensor tensor) const {
    return Stored(extent, tensor, Whole(extent));
  }
  absl::StatusOr<std::vector<HostView>> Stored(const ShardExtent& extent, StateTensor tensor,
                                               const ExtentPart& part) const;
  // Returns one of these arrays, in a form that RowOf() has for the parameter.
  absl::StatusOr<HostView> StoredArray(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                       const ExtentPart& part) const;
  // Copies the same bytes by a queue of the shard's device to `target`, host memory that is open to the device
  // (ComputeDevice::OpenHostMemory). Returns their number.
  absl::StatusOr<int64_t> CopyStored(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                     const ExtentPart& part, DeviceQueue& queue, uint8_t* target) const;
  // Cuts an extent into parts of whole rows and blocks, whose planes lie in one piece too: readers need memory for one
  // part, however large the extent is. A part has at least the rows of a block.
  std::vector<ExtentPart> Parts(const ShardExtent& extent) const;
  // Returns the row-wise plane, then the column-wise one where the format has it.
  absl::StatusOr<std::vector<PlaneViews>> PlaneBytes(const ShardExtent& extent) const {
    return PlaneBytes(extent, extent.rows);
  }
  // Returns the planes of the rows of one part.
  absl::StatusOr<std::vector<PlaneViews>> PlaneBytes(const ShardExtent& extent, RowRange rows) const;
  // Reads the same bytes, one plane after the other, a few MiB at a time.
  absl::Status ReadPlanes(const ShardExtent& extent, absl::FunctionRef<void(const HostView&)> sink) const;
  // Return sizes of the planes, and of masters, moments and gradients.
  int64_t PlaneSize(const ShardExtent& extent) const;
  int64_t OptimizerSize(const ShardExtent& extent) const;
  // Encodes the extent again, on the host, with what it was encoded with, and compares with what is served.
  absl::StatusOr<bool> PlanesMatch(const ShardExtent& extent) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  // Replaces rows of one extent's tensor, without encoding planes: call EncodePlanes after the last. (The upper half of
  // a master with remainder may be a plane, and is replaced.) `rows` are the parameter's, and lie in the extent.
  // Without a master, rows are kept in host memory until EncodePlanes, and all of the extent are to be written.
  absl::Status WriteRows(const ShardExtent& extent, StateTensor tensor, RowRange rows, absl::Span<const float> values);
  // Does the same with bytes as Stored() gives them, in a form that RowOf() has for the parameter.
  absl::Status WriteStoredRows(const ShardExtent& extent, StateTensor tensor, TensorForm form, RowRange rows,
                               absl::Span<const uint8_t> bytes);
  // Replaces a plane's bytes of a frozen parameter without a master; what is empty stays. `rows` are whole rows of what
  // is given: any for data, rows of whole blocks for scales, the extent's for what is one of the whole tensor. Bytes
  // are as PlaneBytes() of these rows gives them, and nothing is made of rows that were written.
  struct PlaneContent {
    absl::Span<const uint8_t> data = {};
    absl::Span<const uint8_t> scales = {};
    absl::Span<const uint8_t> amax = {};
  };
  absl::Status WritePlane(const ShardExtent& extent, Plane plane, RowRange rows, const PlaneContent& content);
  // Replaces all rows.
  absl::Status Write(const ShardExtent& extent, StateTensor tensor, absl::Span<const float> values) {
    return WriteRows(extent, tensor, extent.rows, values);
  }
  void SetStep(const ShardExtent& extent, int64_t step);
  // Sets steps in the order of CollectSteps().
  void SetSteps(absl::Span<const int64_t> steps);
  // Sets the numbers of an adopted state; steps in the order of CollectSteps().
  void AdoptNumbers(absl::Span<const int64_t> steps, int64_t version, int64_t generation);
  void SetVersion(int64_t version);
  void SetGeneration(int64_t generation);

  const ParameterSpec& Spec(const ShardExtent& extent) const {
    return spec_.units[extent.unit].parameters[extent.parameter];
  }
  ExtentPart Whole(const ShardExtent& extent) const {
    return {.rows = extent.rows, .first_column = 0, .columns = Spec(extent).columns()};
  }

 private:
  Shard(const ModelSpec& spec, const Layout& layout, int rank, ComputeDevice* device, const MovePolicy& policy);
  absl::Status Allocate(StateMemory& memory, int world_rank);
  absl::Status MakeArithmetic(int64_t position);
  absl::Status FillInitialValues();
  // A parameter's place in the whole model.
  int64_t PlaceOf(const ShardExtent& extent) const { return unit_begin_[extent.unit] + extent.parameter; }
  ShardArithmetic::Initial InitialOf(const ShardExtent& extent) const;
  ExtentTensors Tensors(const ShardExtent& extent) const;
  AdamStep StepOf(const ShardExtent& extent, int64_t step, const StepParameters& parameters) const;
  // Says what the planes of an extent without a master are yet to be made of.
  enum class PlaneSource : uint8_t { kNone, kInitialValues, kWrittenRows };
  // Holds what changes of an extent.
  struct ExtentState {
    int64_t step = 0;          // optimizer steps taken
    bool awaits_amax = false;  // has stepped, and EncodesAfterAmax()
    TensorScaling scaling = {};
    PlaneSource source = PlaneSource::kNone;
    // Without a master, while rows are written and planes made of them.
    std::unique_ptr<float[]> written_rows = nullptr;        // of the whole extent
    std::unique_ptr<ShardArithmetic> arithmetic = nullptr;  // on it and room_, where room was made
  };
  int IndexOf(const ShardExtent& extent) const { return extent_index_[extent.unit][extent.parameter]; }
  const ExtentState& StateOf(const ShardExtent& extent) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return states_[IndexOf(extent)];
  }
  // Returns what the trainable extents were encoded with.
  std::vector<TensorScaling> Scalings() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  MutablePlane PlaneOf(const ShardExtent& extent, Plane plane) const;
  // Data, scales and amax of the planes that the extent has.
  using PlaneSpans = std::array<absl::Span<const uint8_t>, 3>;
  // Returns the spans of rows that begin where a block does.
  std::vector<PlaneSpans> Spans(const ShardExtent& extent, RowRange rows) const;
  absl::StatusOr<bool> PlanesMatch(const ShardExtent& extent, const ExtentPart& part) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  AdamState State(const ShardExtent& extent) const;
  // Where an extent's part of an array of the state begins before steps move it.
  uint8_t* BeginOf(const ShardExtent& extent, int array) const;
  MutableGradient Gradient(const ShardExtent& extent) const;
  // Says where a stored array of an extent begins now.
  uint8_t* ArrayOf(const ShardExtent& extent, StateTensor tensor, TensorForm form) const;
  absl::Span<const uint8_t> BytesOf(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                    const ExtentPart& part) const;
  absl::Status WriteArray(const ShardExtent& extent, StateTensor tensor, TensorForm form, RowRange rows,
                          absl::Span<const uint8_t> bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frozen extents without a master are worked on one after the other, in room that was made for them or that
  // lives as long as this.
  struct FrozenWork {
    Memory scratch;
    std::unique_ptr<ShardArithmetic> own;
    ShardArithmetic* arithmetic = nullptr;  // on this extent alone
  };
  absl::StatusOr<std::unique_ptr<ShardArithmetic>> MakeFrozenArithmetic(const ShardExtent& extent,
                                                                        const Memory& scratch) const;
  // Loads an extent, with the master from which planes are to be made.
  absl::StatusOr<FrozenWork> LoadFrozen(int index) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status MakeRoomForRows(const ShardExtent& extent, ExtentState& state) const;
  absl::StatusOr<std::vector<float>> DecodedPlane(const ShardExtent& extent, const ExtentPart& part) const;
  // The part's rows are counted from the extent's first, and are whole blocks, the last rows of one, or a part of one
  // block.
  absl::Status DecodeRows(const ShardExtent& extent, const ExtentPart& part, float* out) const;
  bool HasMaster(const ShardExtent& extent) const { return Spec(extent).master_type.has_value(); }
  int extent_count() const { return static_cast<int>(extents_.size()); }
  // Returns true if the upper half of a master with a remainder has an array of its own, of which the plane is a copy.
  static bool HasWeights(const ShardExtent& extent) { return extent.row_bytes[kWeightArray] > 0; }
  bool HasRemainder(const ShardExtent& extent) const { return Spec(extent).master_type == MasterType::kBF16Remainder; }

  // Constant after Create.
  const ModelSpec& spec_;
  const Layout& layout_;
  ComputeDevice* const device_;
  const ShardPlacement placement_;
  const std::vector<ShardExtent>& extents_;     // placed
  const int trainable_count_;                   // of the first extents
  std::vector<std::vector<int>> extent_index_;  // [unit][parameter] -> index in extents_, or -1
  std::vector<int64_t> unit_begin_;             // parameters of the model before each unit
  std::vector<int> kept_;                       // indices of frozen extents with a master

  // Trainable extents with a gradient since the last commit. Owned by the push thread.
  std::vector<bool> has_gradient_;

  mutable absl::Mutex mu_;
  std::vector<ExtentState> states_ ABSL_GUARDED_BY(mu_);  // by extent
  int64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;

  // Where they lie is constant after Create; bytes of masters, moments and planes are guarded by mu_.
  std::unique_ptr<StateMemory> own_memory_;  // null where the state lies in another's
  const Memory* master_ = nullptr;
  const Memory* gradients_ = nullptr;
  PerMoment<const Memory*> moments_ = {};
  const Memory* plane_copy_ = nullptr;  // null where there is none
  Memory planes_;
  std::unique_ptr<ShardArithmetic> arithmetic_;       // on the trainable extents in these memories
  std::unique_ptr<ShardArithmetic> kept_arithmetic_;  // on kept_; null without any

  // Holds masters that are not kept while planes are made of them: for the largest extent that room was made for.
  Memory room_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SHARD_H_
