// The restores of a daemon's models in its world: node 0 leads them, the others follow.
#ifndef PARAMSHARD_SERVER_RESTORES_WORLD_RESTORES_H_
#define PARAMSHARD_SERVER_RESTORES_WORLD_RESTORES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/restores/restore_follower.h"
#include "server/restores/restore_leader.h"
#include "server/restores/rollback_leader.h"
#include "server/store/model_store.h"
#include "server/terms/history.h"
#include "server/terms/restore_news.h"

namespace paramshard::server {

// Has the one role that this daemon has, and passes on to it what daemons say. Models that are being created wait for
// each other: a creation at another node for node 0's word, and node 0's creation for those of the others. All waits
// are bounded by the timeout. What the daemons say to each other: restore_news.h.
//
// Thread-safe.
class WorldRestores final : public RestoreListener {
 public:
  // Where tests hold a restore back.
  enum class Point : uint8_t {
    kReady,    // another node is about to say that it is
    kGo,       // node 0 is about to let all go
    kRows,     // any node is about to write its rows
    kWritten,  // any node has, and its planes: another one is about to say so, node 0 to wait for the others
    kEnd,      // node 0 is about to say that the state is whole
  };

  struct Options {
    ModelStore* store = nullptr;                 // outlives this
    absl::Duration timeout = absl::Minutes(10);  // of a restore, from the order to the end
    const Clock* clock = &Clock::Steady();       // outlives this
    HistoryIdSource draw_id = RandomHistoryId;
    std::function<void(Point)> at = [](Point) {};
  };

  // Listens to the store until its end.
  explicit WorldRestores(Options options);
  ~WorldRestores() override;

  // The daemon drains: ends all waits, and refuses what comes. Idempotent.
  void BeginDrain();

  // Of node 0, and of a world of one daemon; else null.
  RestoreLeader* leader() const { return leader_.get(); }
  // Of any other node; else null.
  RestoreFollower* follower() const { return follower_.get(); }
  // FAILED_PRECONDITION: another daemon is to be asked.
  absl::Status CheckLeads(absl::string_view model) const;

  // A model was created here with its initial values.
  void OnCreatedFresh(const std::string& model);

  void OnRestoreNews(const RestoreNews& news) override;

 private:
  const Options options_;
  std::unique_ptr<RestoreLeader> leader_;
  std::unique_ptr<RollbackLeader> rollbacks_;  // beside it
  std::unique_ptr<RestoreFollower> follower_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_WORLD_RESTORES_H_
