// What a restore agrees on with the other daemons of its world.
#ifndef PARAMSHARD_SERVER_RESTORES_RESTORE_PEERS_H_
#define PARAMSHARD_SERVER_RESTORES_RESTORE_PEERS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/restores/restorer.h"
#include "server/store/model.h"
#include "server/terms/history.h"

namespace paramshard::server {

// ModelRestore::Run calls Begin, Write and Conclude in this order, each once at most, and CheckGoesOn between the last
// two. All waits are bounded. A write ends soon when the restore is over elsewhere. Of a world of one daemon: NoPeers.
class RestorePeers {
 public:
  virtual ~RestorePeers() = default;

  // That begins at every daemon; none: whoever restores draws it.
  virtual std::optional<HistoryId> history() const = 0;
  // Whether this daemon's next server can make a restore again that is cut off, or have all make it again.
  virtual bool can_redo() const = 0;
  // Why all daemons go back to a saved state, which nobody has asked for; empty otherwise. `model` is the one here.
  virtual std::string RollbackWhy(const Model& model) const = 0;
  // This daemon is ready: trainers and readers are held off, and nothing has changed. Waits until all daemons are. An
  // error: nothing is to change.
  virtual absl::Status Begin() = 0;
  // Writes, and lets the others know meanwhile how far this daemon is. Errors of Restorer::Write; why the restore is
  // over elsewhere, or DEADLINE_EXCEEDED.
  virtual absl::Status Write(Restorer& restorer) { return restorer.Write(); }
  // Planes are encoded: whether anybody will use them. It does not wait. Errors as of Write.
  virtual absl::Status CheckGoesOn() = 0;
  // This daemon has written all of its rows. Waits until all have, and until it is known that together they have what
  // was saved. An error: the state is not to be used.
  virtual absl::Status Conclude(const Restorer& restorer) = 0;
  // How far all of them are, as far as this daemon knows: it is that far itself. For any thread.
  virtual Restorer::Progress Whole(const Restorer::Progress& own) const = 0;
  // Ends waits and the write soon, with CANCELLED. For any thread.
  virtual void Cancel() = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_RESTORE_PEERS_H_
