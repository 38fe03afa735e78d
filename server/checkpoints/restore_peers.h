// Interface of a restore to the other daemons of its world.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_PEERS_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_PEERS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/checkpoints/restorer.h"
#include "server/models/model.h"
#include "server/terms/history.h"

namespace paramshard::server {

// ModelRestore::Run calls Begin, Write and Conclude in this order, each once at most, and CheckGoesOn between the last
// two. All waits are bounded. A write ends soon after the restore is over elsewhere. NoPeers is for a world of one
// daemon.
class RestorePeers {
 public:
  virtual ~RestorePeers() = default;

  // Returns the history that begins at every daemon; no value: the restored model draws it.
  virtual std::optional<HistoryId> history() const = 0;
  // Returns true if this daemon's next server can repeat a restore that is cut off, or order all daemons to repeat it.
  virtual bool can_redo() const = 0;
  // Returns why all daemons go back to a saved state without a request; empty for a requested restore. `model` is this
  // daemon's model.
  virtual std::string RollbackWhy(const Model& model) const = 0;
  // Reports that this daemon is ready: trainers and readers are held off, and nothing has changed. Waits until all
  // daemons are ready. After an error nothing may change.
  virtual absl::Status Begin() = 0;
  // Writes, and reports this daemon's progress meanwhile. Errors of Restorer::Write; the reason why the restore is over
  // elsewhere; DEADLINE_EXCEEDED.
  virtual absl::Status Write(Restorer& restorer) { return restorer.Write(); }
  // Checks, while planes are encoded, that they will be used. Does not block. Errors of Write.
  virtual absl::Status CheckGoesOn() = 0;
  // Reports that this daemon has written all its rows. Waits until all daemons have, and until it is known that
  // together they have what was saved. After an error the state must not be used.
  virtual absl::Status Conclude(const Restorer& restorer) = 0;
  // Returns the progress of all daemons, as far as this daemon knows it; `own` is its own progress. Thread-safe.
  virtual Restorer::Progress Whole(const Restorer::Progress& own) const = 0;
  // Ends waits and the write soon, with CANCELLED. Thread-safe.
  virtual void Cancel() = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_PEERS_H_
