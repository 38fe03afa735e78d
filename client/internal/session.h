// One trainer's attachment to a model for one epoch: the state behind Model and its handles.
#ifndef PARAMSHARD_CLIENT_INTERNAL_SESSION_H_
#define PARAMSHARD_CLIENT_INTERNAL_SESSION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/internal/attachment.h"
#include "client/internal/command_executor.h"
#include "client/internal/commits.h"
#include "client/internal/companion.h"
#include "client/internal/daemon_watch.h"
#include "client/internal/epoch_page.h"
#include "client/internal/gathers.h"
#include "client/internal/gradients.h"
#include "client/internal/interruption.h"
#include "client/internal/mapped_memory.h"
#include "client/internal/session_stream.h"
#include "client/internal/tensor_memory.h"
#include "common/model/gather_copies.h"
#include "common/model/layout.h"
#include "common/model/name_index.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::internal {

// Owns the memory from the daemon, and the gathers, gradients and commits on it. Used by one thread at a time.
// Memory stays mapped for as long as the object lives, also after Detach, until UnmapEnded.
//
// In a forked child every call returns FAILED_PRECONDITION and touches no state of the parent, and the object is never
// destroyed.
class Session {
 public:
  // Results of attaching.
  struct Parts {
    int rank = 0;
    bool prefetch = true;
    v1::EpochStarted started;
    Companion companion;
    SessionMemory memory;
    std::unique_ptr<SessionStream> stream;  // null: Detach sends nothing
    TensorMapper map_tensors = &MapTensors;
    Interruption interruption;
  };

  // Computes the layout, maps the memory and starts the watch. INTERNAL or FAILED_PRECONDITION when the daemon has
  // a different layout, or memory of other sizes.
  static absl::StatusOr<std::shared_ptr<Session>> Create(Parts parts);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Gathers& gathers() { return gathers_; }
  const Gathers& gathers() const { return gathers_; }
  Gradients& gradients() { return gradients_; }
  Commits& commits() { return commits_; }

  // Ends the step: sends the commit when nothing is held. Returns its number.
  absl::StatusOr<int64_t> Commit(const CommitOptions& options);

  // Begins the step anew: sends the discard.
  absl::Status Discard();

  // OK while the epoch runs, else why it ended; CheckProcess is OK in the process that attached.
  absl::Status status() const { return page_.status(); }
  absl::Status CheckProcess() const { return page_.CheckProcess(); }
  // Unmaps planes and slots where the epoch has ended and no reader is left.
  // On a GPU it waits for the streams as the destructor does.
  void UnmapEnded();
  // The last commit that is known to be answered, updated by UnmapEnded and at the session's end. It outlives the
  // session.
  std::shared_ptr<const std::atomic<int64_t>> answered() const { return answered_; }
  // See Model::KeepMapped.
  static std::shared_ptr<const void> KeepMapped(std::shared_ptr<Session> session);
  // Idempotent; does not wait for commits. DEADLINE_EXCEEDED when the daemon does not confirm.
  absl::Status Detach();

  const ModelSpec& spec() const { return layout_.spec(); }
  const Layout& layout() const { return layout_; }
  const NameIndex& names() const { return names_; }
  // This process's index of the GPU whose memory the tensors are in; -1: host memory.
  int gpu() const { return memory_.tensors->gpu(); }
  const v1::EpochStarted& started() const { return started_; }
  int rank() const { return rank_; }

 private:
  struct Memory {
    std::shared_ptr<const MappedMemory> words;
    std::unique_ptr<TensorMemory> tensors;  // ends before the words
  };

  Session(Parts parts, Layout layout, UnitGatherCopies copies, Memory memory);
  static absl::StatusOr<Memory> MapMemory(const Parts& parts, const Layout& layout, int64_t scratch_bytes);
  Attachment Attached() { return {layout_, names_, started_, page_, *memory_.tensors, executor_}; }

  // Constant after construction.
  const int rank_;
  const v1::EpochStarted started_;  // without the spec
  const Layout layout_;
  const NameIndex names_;  // of the layout's spec

  Companion companion_;
  const Memory memory_;
  EpochPage page_;
  CommandExecutor executor_;

  Commits commits_;
  Gathers gathers_;
  Gradients gradients_;

  const std::shared_ptr<std::atomic<int64_t>> answered_ =
      std::make_shared<std::atomic<int64_t>>(started_.commit_number());
  const std::shared_ptr<const char> mapped_ = std::make_shared<const char>();  // shared with results of KeepMapped

  std::unique_ptr<SessionStream> stream_;
  // Ends before the members that it watches.
  std::unique_ptr<DaemonWatch> watch_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_SESSION_H_
