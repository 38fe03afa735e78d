// Client library: connects a trainer to the paramshard daemon of its node. Start here.
//
//   auto client = paramshard::Client::Connect({.rank = 0});
//   auto model = client->OpenModel(spec);                  // create or join, then wait for the other ranks
//   auto unit = model->Gather("blocks.0", paramshard::Phase::kForward);   // returns at once
//   status = unit->Wait();
//   paramshard::Matrix w = *unit->Get("blocks.0.w1");      // views, valid until `unit` is released
//   status = w.Decode(values);
//   auto gradients = model->Gradients("blocks.0");         // a free gradient slot
//   status = gradients->Get("blocks.0.w1")->Write(values);
//   status = gradients->Push();
//   auto commit = model->Commit({.learning_rate = 1e-3f, .max_grad_norm = 1.0f, .client_state = state});
//   auto result = commit->Wait();                          // only when the result is wanted now
//
// Every rank of the world issues the same Commits and Discards. Where all ranks have one daemon, gathers are each rank's
// own, and pushes are matched by unit: the k-th pushes of a unit in a step add up, and a rank that comes to its commit
// without one adds nothing. Ranks of several daemons issue the same sequence of all calls. Calls return at once: the
// daemon carries them out and answers in shared memory. Errors are absl::Status; no call throws. When another
// trainer dies, the next call is ABORTED; when the daemon dies, UNAVAILABLE: drop every handle, call OpenModel again,
// which waits for a daemon that is being started again, and go on from Model::commit_number() and
// Model::client_state(): the number may be less than the last answered one, where the daemons came back with a save,
// and is 0 where the model was lost. OpenModel reports this once, as DATA_LOSS (Client::Options::accept_rollback).
// A Model and its handles may be used from one thread at a time; different models are independent.
//
// **Fork.** A Client, a Model and their handles belong to the process that opened them: in a forked child every call on
// them is FAILED_PRECONDITION, and destroying them does nothing, so that the workers of a data loader may end as they
// like. Views are not mapped in the child: reading one is a segmentation fault. The child cannot connect either, for
// gRPC's threads do not exist there: processes that need a daemon fork before the first Connect, or exec (in Python:
// the start methods spawn and forkserver).
//
// **GPUs.** Where the daemon serves the rank from a `cuda` device, the trainer maps that GPU's memory: views then lie
// there, and every call here means the same as in host memory. Wait and Gradients return when their memory is ready for
// every stream: the host has waited. Push and Release take effect after the work so far of the GPU's default stream and
// of every stream that waits for it (all except cudaStreamNonBlocking streams); the host goes on. Trainers with other
// streams synchronize them before, or name them: client/cuda.h beside this header has the same calls on streams.
#ifndef PARAMSHARD_CLIENT_CLIENT_H_
#define PARAMSHARD_CLIENT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"   // ModelSpec: how a model is described
#include "common/model/phase.h"        // Phase: what a gather brings
#include "common/model/save_state.h"   // SaveState, SaveReason
#include "common/model/tensor_kind.h"  // TensorKind, TensorType: what imports and exports carry
#include "kernels/formats/format.h"
#include "kernels/formats/scale_layout.h"
#include "kernels/optim/hyperparameters.h"  // Hyperparameters: their defaults and ranges
#include "kernels/reduce/gradient.h"

namespace paramshard {

// Hyper-parameters of one commit for one parameter group. Commit refuses values out of range.
using GroupHyperparameters = Hyperparameters;

struct CommitOptions {
  // Hyper-parameters of every group, unless `groups` is given; Hyperparameters has the ranges.
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  float momentum = 0.0f;
  float dampening = 0.0f;
  std::vector<GroupHyperparameters> groups = {};  // empty, or one for each group of the model
  std::optional<float> max_grad_norm = {};        // clip to this global norm; finite, > 0
  float gradient_scale = 1.0f;                    // loss scale that the gradients carry; finite, > 0
  std::string client_state = {};                  // at most 64 KiB; comes back after a crash
  // Number of this commit; unset: the last answered + 1. Repeating the last answered number
  // repeats its answer.
  std::optional<int64_t> commit_number = {};
  // Saves the state after this commit as a checkpoint. The same on all ranks. The daemon needs --save-dir: else
  // the epoch ends with FAILED_PRECONDITION. The commit does not wait for the save: Client::Saves
  // reports its result.
  bool save = false;
  // At most 4096 bytes for readers, which get them with a snapshot of the version that this commit leaves
  // (Snapshot::data in reader.h): the step, a schedule. The same on all ranks: else the epoch ends with
  // FAILED_PRECONDITION.
  std::string reader_data = {};
};

// The answer of a commit: the same on all ranks.
struct StepResult {
  int64_t commit_number = 0;
  int64_t version = 0;           // counts the commits that were applied
  bool skipped = false;          // a gradient was not finite; nothing changed
  double gradient_norm = 0;      // of all parameters together, unscaled, before clipping
  int64_t non_finite_count = 0;  // elements of gradients
};

// One plane of one gathered parameter, in the memory of a slot (or of the arena, in a world of one
// rank). Scales are compact: ScaleShape(encoding, plane, rows, columns); a single number in formats
// with one scale for the whole tensor.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  Encoding encoding = {};
  Plane plane = Plane::kRowWise;
  absl::Span<const uint8_t> data = {};
  absl::Span<const uint8_t> scales = {};  // empty where the format has none
  absl::Span<const uint8_t> amax = {};    // NVFP4_2D: a float32, of the whole tensor; else empty
  int gpu = -1;                           // where they lie: host memory, or a GPU by its index in this process

  // Writes rows * columns decoded values into host memory. From host memory it does not allocate and does not fail;
  // from a GPU it copies, and the pieces must be there: after Wait, or when a stream has done the work of WaitOn.
  absl::Status Decode(float* values) const;

  // Writes the same values rounded to BF16, as bit patterns. Reads from a GPU as Decode does.
  absl::Status DecodeToBFloat16(uint16_t* values) const;

  // Writes the data of an 8-bit or 4-bit format transposed into host memory: columns x DataBytes of a row of `rows`
  // elements, unused bits of a byte zero. Scales stay unchanged. INVALID_ARGUMENT for an `out` of another size,
  // UNIMPLEMENTED for formats of another width.
  absl::Status Transpose(absl::Span<uint8_t> out) const;

  // Writes the scales as a product reads them into host memory: see scale_layout.h for layouts, shapes and padding.
  // `operand` unset: the side that the plane is made for; Plane::kColumnWise of a row-wise plane gives the scales of
  // its transpose, in formats whose blocks serve both (MXFP8_2D, NVFP4_2D). INVALID_ARGUMENT for a layout or an operand
  // that the format does not have, or an `out` of another size than ScaleLayoutBytes.
  absl::Status CopyScales(ScaleLayout layout, absl::Span<uint8_t> out,
                          std::optional<Plane> operand = std::nullopt) const;
  absl::StatusOr<int64_t> ScaleLayoutBytes(ScaleLayout layout, std::optional<Plane> operand = std::nullopt) const;
};

// Memory for one parameter's gradient, written by the trainer: rows x columns, row-major, of the
// parameter's gradient type. Ends with its UnitGradients.
struct GradientView {
  absl::string_view parameter = {};  // its name; valid as long as the Model
  int64_t rows = 0;
  int64_t columns = 0;
  GradientType type = GradientType::kFP32;
  absl::Span<uint8_t> data = {};
  int gpu = -1;  // where it lies, as in Matrix

  // Requires type == kFP32. Memory of the GPU where `gpu` is not -1.
  absl::Span<float> fp32() const;
  // Requires type == kBF16: the bit patterns. Memory of the GPU where `gpu` is not -1.
  absl::Span<uint16_t> bf16() const;

  // Copies rows * columns values from host memory, rounded to the type, to the gradient in host or GPU memory; done on
  // return. INVALID_ARGUMENT for another number of values. Writes of streams to the same memory must be done before.
  absl::Status Write(absl::Span<const float> values) const;
};

namespace internal {
class Session;
class HandleAccess;
}  // namespace internal

// A unit's parameters, being gathered or gathered. Holds a slot until released or destroyed.
class GatheredUnit {
 public:
  GatheredUnit(GatheredUnit&&) noexcept;
  GatheredUnit& operator=(GatheredUnit&&) noexcept;
  ~GatheredUnit();

  // Blocks until all pieces are in the slot. ABORTED and the like when the epoch has ended. On a GPU DEADLINE_EXCEEDED
  // when the stream that waits for the unit is not done within five minutes.
  absl::Status Wait();
  // Returns true if Wait would return at once.
  bool Ready() const;

  // One parameter's matrix. `plane` unset: the plane of the gather's phase (row-wise for kBoth).
  // FAILED_PRECONDITION before a successful Wait, or the epoch's end status if that made Wait fail; NOT_FOUND for
  // another unit's parameter; INVALID_ARGUMENT for a plane that was not gathered. Views end with the handle.
  absl::StatusOr<Matrix> Get(absl::string_view parameter, std::optional<Plane> plane = std::nullopt) const;

  // Gives the slot back, on the stream of the last cuda::WaitOn, if any; the destructor does the same.
  void Release();

 private:
  friend class Model;
  friend class internal::HandleAccess;
  class Impl;
  explicit GatheredUnit(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A gradient slot for one unit, zeroed when handed out. Accumulate any number of micro-batches into
// it, then push it once; or push once for each micro-batch: pushes within a step add up.
// ModelSpec::pushes_per_step bounds their number.
//
// On a GPU the slot of Model::Gradients may be written by any stream at once. Push takes it after the work so far
// of the default stream, copies from pageable memory included; synchronize other streams before.
class UnitGradients {
 public:
  UnitGradients(UnitGradients&&) noexcept;
  UnitGradients& operator=(UnitGradients&&) noexcept;
  // Gives an unpushed slot back unused.
  ~UnitGradients();

  // NOT_FOUND for another unit's parameter; INVALID_ARGUMENT for a frozen one, here and below.
  absl::StatusOr<GradientView> Get(absl::string_view parameter) const;

  // Marks the parameter as without a gradient in this push: this rank adds nothing to the sum, and its memory is not
  // read. Each rank marks its own; a parameter that no rank has a gradient of keeps its state.
  absl::Status MarkAbsent(absl::string_view parameter);

  // Hands the slot to the daemon, on the stream of cuda::Gradients, if any. Returns at once; the views end here.
  // FAILED_PRECONDITION for more pushes of the unit before a commit or a discard than ModelSpec::pushes_per_step
  // (names the unit): nothing is sent, and the slot is held as before.
  absl::Status Push();

 private:
  friend class Model;
  friend class internal::HandleAccess;
  class Impl;
  explicit UnitGradients(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The future of one commit. Copyable. May outlive its Model, whose memory it keeps.
class PendingCommit {
 public:
  // Blocks until the daemon has answered, and may be called again: the last 64 commits' answers are kept. When the
  // epoch ends before: its end status; Model::commit_number() after the next OpenModel says whether the commit counted.
  absl::StatusOr<StepResult> Wait();
  // Returns true if Wait would return at once.
  bool Ready() const;
  int64_t commit_number() const { return commit_number_; }

 private:
  friend class Model;
  PendingCommit(std::shared_ptr<internal::Session> session, int64_t commit_number);
  std::shared_ptr<internal::Session> session_;
  int64_t commit_number_;
};

// A model that this trainer is attached to, for one epoch. Movable. Handles must be destroyed
// before it.
class Model {
 public:
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  // Detaches. In memory of a GPU the last handle or Model to go waits until the GPU's streams are done.
  ~Model();

  // Starts gathering a unit. RESOURCE_EXHAUSTED when no slot that fits is free (names the units that hold
  // them, and the field of the spec that gives more); NOT_FOUND an unknown unit; INVALID_ARGUMENT a phase that the unit
  // does not have; the epoch's end status once it has ended. From the second
  // step on, gathers are issued ahead in the order seen in the first step, up to the depth of the
  // ring.
  absl::StatusOr<GatheredUnit> Gather(absl::string_view unit, Phase phase);

  // Returns the status that Gather would have now. Sends nothing, and other ranks need not make the same call.
  absl::Status CanGather(absl::string_view unit, Phase phase) const;

  // Returns the slots, ascending, that such a gather fits: units whose slots are the same share them, and as many of
  // them can be held at a time as there are slots. Slots are numbered from 0: first the ModelSpec::gather_slots that
  // units share, the large ones last, then one of its own for each unit with reshard_after_forward = false. The errors
  // of Gather, but for RESOURCE_EXHAUSTED and the epoch's end.
  absl::StatusOr<std::vector<int>> SlotsOf(absl::string_view unit, Phase phase) const;

  // Hands out a zeroed gradient slot, waiting for one to drain if none is free. RESOURCE_EXHAUSTED when all that fit
  // are held, unpushed (names their units); NOT_FOUND an unknown unit; INVALID_ARGUMENT a unit whose parameters are all
  // frozen; the epoch's end status once it has ended.
  absl::StatusOr<UnitGradients> Gradients(absl::string_view unit);

  // Copies a unit's gradients and pushes them: Gradients, the writes and Push in one call, with one copy less of the
  // rows that this rank sums. `values` has a gradient for each parameter of the unit, in its order: rows x columns,
  // row-major, in host memory, of either type; without data the parameter is marked absent. The errors of Gradients and
  // Push; INVALID_ARGUMENT for another number of values, and for values of a frozen parameter; FAILED_PRECONDITION where
  // the memory is a GPU's (see cuda::PushGradients). On an error nothing is pushed.
  absl::Status PushGradients(absl::string_view unit, absl::Span<const ConstGradient> values);

  // Applies one optimizer step. Returns at once, unless three commits are unanswered: then it waits for the oldest.
  // FAILED_PRECONDITION while a gathered unit or an unpushed gradient slot is held (names it), or for a commit number
  // that is not the next or the last; INVALID_ARGUMENT for hyper-parameters that are out of range (says which), a
  // number of groups that is not the model's, or a client state that is too large; the epoch's end status.
  absl::StatusOr<PendingCommit> Commit(const CommitOptions& options);

  // Drops all gradients pushed since the last commit, as if they had never been pushed, to begin a failed step
  // anew. Ends a step like a commit: every rank calls it at the same point, whether it has pushed or not, or the epoch
  // ends with FAILED_PRECONDITION that names both commands. Returns at once, and changes neither masters nor commit numbers.
  // Gathered units may be held, and unpushed gradient slots too: what they hold is pushed later, after it. A commit
  // without a push after it leaves every parameter as it is. The epoch's end status.
  absl::Status Discard();

  // State at the start of this epoch: the last answered commit, what this rank sent with it, and
  // its result.
  int64_t commit_number() const;
  int64_t version() const;
  const std::string& client_state() const;
  std::optional<StepResult> last_result() const;

  int64_t epoch() const;
  int rank() const;
  int world_size() const;
  // This rank among the ranks that take part in the epoch, 0 <= active_rank < active_world_size, and their number:
  // batches are dealt by these. Where replicas go on without a lost daemon (--min-replicas) its ranks are left out;
  // else these are rank() and world_size().
  int active_rank() const;
  int active_world_size() const;
  int shard_size() const;
  // The daemon's spec: with every default, and every parameter's format from its rule.
  const ModelSpec& spec() const;

  // Bytes that the gathers of this session have brought in so far: the pieces of all ranks, this one's own included,
  // with the padding of their small extents.
  int64_t gathered_bytes() const;
  // This process's index of the GPU whose memory the views are in; -1: host memory.
  int gpu() const;
  // Keeps the memory of this Model's views mapped for as long as the returned object lives, also when handle, Model and
  // Client are gone and the epoch has ended: reading an old view then gives meaningless bytes, and no fault. For
  // programs that cannot know when a view is read last. A restarted server cannot use this memory either.
  std::shared_ptr<const void> KeepMapped() const;
  // OK while the epoch runs, else why it ended. Data that streams have waited for is valid only if this is OK after the
  // wait.
  absl::Status status() const;

  // Leaves after the last command of this rank, and waits for the daemon's confirmation. Commands that all ranks have
  // sent by then are carried out and answered to the others; the first commit or discard of another rank that this one
  // has not sent is ABORTED. Where ranks have several daemons, the first command.
  absl::Status Detach();

 private:
  friend class Client;
  friend class internal::HandleAccess;
  explicit Model(std::shared_ptr<internal::Session> session);
  std::shared_ptr<internal::Session> session_;
};

// A tensor for import, or a slice of its rows, row-major. Slices of one tensor in one import do not overlap; rows in
// no slice keep their bytes. One of `values`, `bits` and `bytes` holds its elements.
struct ImportTensor {
  std::string parameter = {};
  TensorKind kind = TensorKind::kMaster;
  TensorType type = TensorType::kFP32;
  absl::Span<const float> values = {};   // the elements of type FP32
  absl::Span<const uint16_t> bits = {};  // the bit patterns of types BF16, FP16 and INT16
  absl::Span<const uint8_t> bytes = {};  // the elements of any type, little-endian
  int64_t first_row = 0;
  std::optional<int64_t> rows = {};  // unset: all from first_row on
  // Shape of the values: the parameter's own, cut to the rows, or rows x columns. Empty: not checked.
  std::vector<int64_t> shape = {};
  std::optional<int64_t> step = {};  // steps taken (bias correction)
};

struct ImportOptions {
  std::optional<int64_t> commit_number = {};
  std::optional<int64_t> version = {};
  // History of the imported state; empty: the daemon derives it from the options (ImportHeader of trainer.proto).
  // To copy the state of one daemon to another, import its export with ExportSummary::history_id.
  std::string history_id = {};
  std::string run = {};  // as CreationOptions::run
};

// Rows of one parameter, as one rank of this daemon owns them, row-major.
struct ExportedExtent {
  std::string parameter = {};
  TensorKind kind = TensorKind::kMaster;
  std::vector<int64_t> shape = {};  // of the parameter
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t step = 0;
  std::vector<float> values = {};  // elements of type FP32
  TensorType type = TensorType::kFP32;
  std::vector<uint8_t> bytes = {};  // elements of every other type, little-endian
};

struct ExportOptions {
  std::optional<int64_t> version = {};       // fail unless this is the present one
  std::vector<std::string> parameters = {};  // empty: all
  std::vector<TensorKind> kinds = {};        // empty: masters
};

struct ExportSummary {
  int64_t version = 0;
  int64_t commit_number = 0;
  std::string history_id = {};
};

// Initial state of a new model. A model that already exists stays unchanged.
struct CreationOptions {
  // A saved state: "latest", a step as "12000", or the name of a checkpoint's folder, in the daemon's --save-dir; or
  // the absolute path of a checkpoint's folder on the daemon's machine. Where there is none, "latest" means initial
  // values, and all else is NOT_FOUND. "none": initial values. Empty: the daemon's --restore, else initial values.
  std::string restore = {};
  // Converts moments that are saved in another type than the spec's, which loses bits. Without it, such moments are
  // INVALID_ARGUMENT.
  bool convert_moments = false;
  // An import by this program follows: a new model is kImporting until an import is done.
  bool values_follow = false;
  // The import replaces every initial value: an existing model may have other initial values than the spec.
  bool all_values_follow = false;
  // The seed is for a new model: an existing model may have another seed.
  bool takes_any_seed = false;
  // Name of the job: equal in all of its ranks and in its restarts, and in no other job. Empty: not known.
  std::string run = {};
};

// Origin of a model's values. The daemon records it, and it survives a restart of the server.
enum class ValueOrigin {
  kUnknown = 0,  // to a daemon that is older than this library
  kInitial = 1,  // the spec
  kImporting,    // the spec, until an import that was announced or is under way is through
  kImported,     // an import, without a commit since
  kRestored,     // a checkpoint, without a commit since; also one of step 0
  kTrained,      // commits
  kLost,         // ModelSummary::unusable says why
};

// Result of CreateModel.
struct CreatedModel {
  bool created = false;  // false: an equal model already existed
  ValueOrigin origin = ValueOrigin::kUnknown;
  int64_t commit_number = 0;
  bool same_run = false;  // its first values come from a creation or an import of the same CreationOptions::run
};

// State of one save so far.
struct SaveRecord {
  std::string model = {};
  int64_t number = 0;  // counts the saves of the model since it was opened, failed ones included
  SaveState state = SaveState::kWaiting;
  SaveReason reason = SaveReason::kCall;
  int64_t step = 0;             // the commit number
  std::string history_id = {};  // which state the step counts from
  std::string path = {};        // of the checkpoint, on the daemon's machine; empty: none
  int64_t size_bytes = 0;       // 0 until the state is copied
  int64_t written_bytes = 0;    // so far
  absl::Time begun_at = absl::UnixEpoch();
  absl::Duration took = {};   // until now, or until it was over
  absl::Duration copy = {};   // time that copying the state took
  absl::Duration stall = {};  // time that a step has waited for the copy
  absl::Status error = {};    // why there is no durable checkpoint; OK where nothing is wrong

  bool is_over() const { return IsOver(state); }
  // Returns true if there is a durable checkpoint of the state.
  bool is_saved() const { return HasCheckpoint(state); }
};

struct SaveOptions {
  // Wait until the save is over; else until it has begun.
  bool wait = true;
};

struct RestoreOptions {
  // See CreationOptions.
  bool convert_moments = false;
  // Called with the progress of the restore, on the calling thread: bytes that are read, and compared afterwards.
  std::function<void(int64_t done_bytes, int64_t all_bytes)> on_progress = {};
};

// Result of Restore.
struct RestoreSummary {
  std::string path = {};               // of the checkpoint's folder, on the daemon's machine
  int64_t step = 0;                    // the commit number that training goes on from
  int64_t version = 0;                 // applied commits
  std::string history_id = {};         // of the new history
  std::string parent_history_id = {};  // of the saved history, which the step counts from
  int saved_world_size = 0;            // of the world that has saved it
  int saved_shard_size = 0;
  int64_t size_bytes = 0;  // of the checkpoint's files
  absl::Duration took = {};
};

// A model as a daemon knows it.
struct ModelSummary {
  std::string name = {};
  int64_t parameter_count = 0;
  int64_t element_count = 0;
  int shard_size = 0;
  int world_size = 0;
  int64_t version = 0;  // counts the commits that were applied
  int64_t commit_number = 0;
  std::string history_id = {};        // which state the numbers count from
  std::optional<int64_t> epoch = {};  // the last one that has started
  bool running = false;               // the epoch has not ended
  int attached_ranks = 0;             // ranks of this daemon that have a trainer
  std::string unusable = {};          // why no trainer can attach; empty while the model can be trained
  ValueOrigin origin = ValueOrigin::kUnknown;
};

// A daemon, and its place in the world.
struct DaemonInfo {
  std::string version = {};
  int64_t pid = 0;                        // of the process that serves, not of its keeper
  std::vector<std::string> devices = {};  // one for each rank: "cpu:0", ...
  int first_rank = 0;                     // it serves the ranks [first_rank, first_rank + devices)
  int world_size = 0;
  int node = 0;   // its number among the daemons of the world
  int nodes = 0;  // number of daemons
  absl::Time started_at = absl::UnixEpoch();
};

// Memory of the daemon in use for one purpose.
struct MemoryUse {
  std::string device = {};  // empty: host memory that all devices of the daemon share
  std::string model = {};
  // master, exp_avg, exp_avg_sq, keeper_scratch (for steps that move these), muon_scratch (for Muon's updates),
  // gradients, planes, gather_slots, gradient_slots, landing_area, control_page, scratch (to receive gradients, and
  // partial sums), histories (of amaxes), save_buffers (of the state) or plane_copies (for the keeper).
  std::string memory_class = {};
  int64_t size_bytes = 0;
};

// A connection to the daemon. Thread-safe. Movable.
//
// It outlives the daemon: the first call after the connection was lost connects anew, within connect_timeout, to
// the daemon that then listens at the same place. While there is none, OpenModel waits, and other calls are
// UNAVAILABLE and say what to do; they may be repeated. A daemon's keeper starts the next server by itself, with the
// models of the dead one, at their last commit. Without a keeper (`paramshardd --keeper=off`) saved state comes back
// where the next daemon restores it (`--restore=latest`), and the rest is lost unless exported: a model that is created
// anew begins at commit 0.
class Client {
 public:
  struct Options {
    // The rank of the world that this trainer serves.
    int rank = 0;
    // The daemon's directory of sockets. Empty: $PARAMSHARD_SOCKET_DIR, else
    // $XDG_RUNTIME_DIR/paramshard, else /tmp/paramshard-<uid>, which must belong to this user or
    // root.
    std::string socket_dir = {};
    // A daemon on another machine: HOST:PORT of its --listen. tls_cert and tls_key are this program's certificate and
    // its key, tls_ca the trusted authorities, as PEM files. tls_roles maps URIs to roles, where they are not of
    // paramshard's own form ("node=spiffe://corp/ps-{N}", docs/operate/security.md). Calls that the certificate's role
    // allows work, except calls that map memory: OpenModel and CreateModel are for trainers beside their daemon.
    // `address` excludes socket_dir; the TLS options require `address`.
    std::string address = {};
    std::string tls_cert = {};
    std::string tls_key = {};
    std::string tls_ca = {};
    std::vector<std::string> tls_roles = {};
    absl::Duration connect_timeout = absl::Seconds(10);  // > 0
    // How long OpenModel waits for the other ranks; > 0. Also limits a creation and a deletion. In a world of several
    // daemons creations with a checkpoint wait for each other, for the daemon's --restore-timeout (8 min): a shorter
    // attach_timeout ends without the name of the missing daemon.
    absl::Duration attach_timeout = absl::Minutes(10);
    // Kill the trainer that holds the rank and take its place.
    bool take_over = false;
    // Issue gathers ahead in the order of the first step.
    bool prefetch = true;
    // Lets OpenModel succeed for a model that has lost commits whose answers this client has seen: all daemons were rolled
    // back to a checkpoint because one of them had lost its part, or the model was restored, or it was lost and created
    // anew. Without it OpenModel returns DATA_LOSS that names both commits, once for each time; the next call succeeds.
    // Set it where every OpenModel is followed by a look at commit_number() and client_state().
    bool accept_rollback = false;
    // How long OpenModel waits, in all, for a daemon that is UNAVAILABLE: it is started again, drains, or waits for
    // another daemon. Connect waits as long where a killed daemon has left its sockets, and not at all where there are
    // none: a missing daemon is more often at another place than late, so start the daemon before the trainer.
    // 0: neither waits.
    absl::Duration restart_timeout = absl::Seconds(60);
    // Called once in each of these calls with what it waits for; on the calling thread. None: standard error.
    std::function<void(absl::string_view)> on_wait = {};
    // Asked about ten times a second, on the calling thread, by calls that wait for the daemon or for other ranks, of
    // this client and of its Models: an error ends the wait, and the call returns it. The operation may still complete,
    // and the call may be repeated. Detach and destructors do not ask: they end by themselves. Waiting for a GPU's
    // stream does not ask either. None: calls wait as they say.
    std::function<absl::Status()> interrupted = {};
  };

  // UNAVAILABLE when no daemon answers, or none within restart_timeout (says where it looked); DEADLINE_EXCEEDED when
  // one is there and says nothing within connect_timeout; PERMISSION_DENIED when the daemon refuses this user, or
  // another user has created /tmp/paramshard-<uid>; INVALID_ARGUMENT for options out of range; FAILED_PRECONDITION in
  // a child that was forked after its parent had connected. For a daemon at an `address` also: FAILED_PRECONDITION
  // names a certificate's file and what is wrong with it; UNAVAILABLE another program listens there.
  static absl::StatusOr<Client> Connect(const Options& options);

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  // Creates the model or joins it, attaches, and waits until every rank is attached. Memory is
  // mapped on return. FAILED_PRECONDITION when the daemon serves the rank from a GPU that this process
  // does not see (names it); UNIMPLEMENTED when that is so and this library was built without CUDA.
  //
  // DATA_LOSS, once, when the model is at an earlier commit than the last one whose answer this client has seen:
  // Options::accept_rollback. The trainer then throws away what it has computed since, calls OpenModel again, and goes
  // on from commit_number() with client_state(). Models that this client has deleted, restored or imported into are not
  // checked, and a new client has seen nothing. ABORTED, once, when another client has deleted a model of which this
  // client has seen answers, and it was created again: do the same.
  //
  // UNAVAILABLE after restart_timeout; other errors come at once. Also a call on earlier Models of the same name from
  // this client: where the epoch has ended and no handle is left, planes and slots are unmapped, for the next server
  // may need their memory. Drop handles before.
  absl::StatusOr<Model> OpenModel(const ModelSpec& spec, const CreationOptions& options = CreationOptions());

  // Creates the model or joins it, without attaching: before an import.
  absl::StatusOr<CreatedModel> CreateModel(const ModelSpec& spec, const CreationOptions& options = CreationOptions());
  // Checks a spec by the rules of every daemon, without a call. INVALID_ARGUMENT as from CreateModel.
  static absl::Status CheckSpec(const ModelSpec& spec);
  absl::Status DeleteModel(absl::string_view model);

  // Replaces tensors of a model without attached trainers; all of them or, on an error, none. Histories of
  // FP8_TENSOR_DELAYED begin anew.
  //
  // A frozen parameter without a master needs all rows that the daemon owns in one import: its planes are made of them.
  //
  // This daemon keeps the rows of its own ranks: in a world of several daemons one client of each imports the same
  // tensors, whole or at least the rows that the daemon owns, with the same options. An epoch starts only where all
  // daemons have the same state. NOT_FOUND for a parameter and INVALID_ARGUMENT for rows or values that are not the
  // model's, before anything is sent; FAILED_PRECONDITION while a trainer is attached.
  absl::Status Import(absl::string_view model, absl::Span<const ImportTensor> tensors,
                      const ImportOptions& options = {});

  // Exports tensors of one state, without client states and histories of FP8_TENSOR_DELAYED; calls `sink` for each
  // extent that this daemon owns. Stops at the first error; ABORTED when a commit or an import changes the state
  // meanwhile.
  absl::StatusOr<ExportSummary> Export(absl::string_view model, const ExportOptions& options,
                                       const std::function<absl::Status(const ExportedExtent&)>& sink);

  // Saves the state of the last commit as a checkpoint in the daemon's --save-dir, while training goes on. Without
  // `wait` it returns as soon as the save has begun, and Saves reports its result; interrupting the wait does not stop
  // the save. A failed save is an answer and no error: SaveRecord::is_saved says whether there is a checkpoint. In a
  // world of several daemons node 0 saves for all.
  //
  // NOT_FOUND no such model; FAILED_PRECONDITION the daemon has no --save-dir, or is not node 0; UNAVAILABLE a save of
  // the model is in progress.
  absl::StatusOr<SaveRecord> Save(absl::string_view model, const SaveOptions& options = SaveOptions());

  // Returns the recent saves, unfinished ones included, the oldest first, at most 64 of a model; `model` empty: of all
  // models. None where the daemon has no --save-dir. NOT_FOUND no such model.
  absl::StatusOr<std::vector<SaveRecord>> Saves(absl::string_view model);

  // Replaces the whole state of a model with a checkpoint's: masters, moments, step counts, client states, version and
  // commit number. `checkpoint` is what CreationOptions::restore may be, but "latest" must be there. In a world of
  // several daemons node 0 restores for all. Returns when it is done: interrupting the call does not stop a restore
  // that has begun.
  //
  // Errors that change nothing: NOT_FOUND no such model, or no such checkpoint (lists the present ones);
  // INVALID_ARGUMENT a text that names no checkpoint, or a checkpoint of another model or spec (names the first
  // difference); FAILED_PRECONDITION while a trainer is attached (names rank and pid), this client's own too, a daemon
  // without --save-dir, or one that is not node 0; PERMISSION_DENIED a path from another user than the daemon's;
  // UNAVAILABLE an import or another restore is in progress. DATA_LOSS also for rows that are damaged: then the model
  // is unusable until it is restored or deleted.
  absl::StatusOr<RestoreSummary> Restore(absl::string_view model, absl::string_view checkpoint,
                                         const RestoreOptions& options = RestoreOptions());

  // Returns the daemon's models by name, then models whose state was lost with an earlier server: these have only name
  // and `unusable` set.
  absl::StatusOr<std::vector<ModelSummary>> Models();
  // Describes the daemon that serves now.
  absl::StatusOr<DaemonInfo> GetDaemonInfo();
  // Returns the bytes that the daemon holds, by device, model and class.
  absl::StatusOr<std::vector<MemoryUse>> GetMemory();

 private:
  class Impl;
  explicit Client(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_CLIENT_CLIENT_H_
