// What a restore agrees on with the other daemons of its world.
#ifndef PARAMSHARD_SERVER_RESTORES_RESTORE_PEERS_H_
#define PARAMSHARD_SERVER_RESTORES_RESTORE_PEERS_H_

#include "absl/status/status.h"
#include "server/restores/restorer.h"
#include "server/store/history.h"

namespace paramshard::server {

// ModelRestore::Run calls Begin, Conclude and Finish in this order, each once at most and Finish always. All waits are
// bounded.
class RestorePeers {
 public:
  virtual ~RestorePeers() = default;

  // That begins at every daemon.
  virtual HistoryId history() const = 0;
  // This daemon is ready: trainers and readers are held off, and nothing has changed. Waits until all daemons are. An
  // error: nothing is to change.
  virtual absl::Status Begin() = 0;
  // This daemon has written all of its rows. Waits until all have, and until it is known that together they have what
  // was saved. An error: the state is not to be used.
  virtual absl::Status Conclude(const Restorer& restorer) = 0;
  // The restore is over at this daemon; the others are told when this object ends at the latest.
  virtual void Finish(const absl::Status& status) = 0;
  // Ends waits soon, with CANCELLED. For any thread.
  virtual void Cancel() = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_RESTORE_PEERS_H_
