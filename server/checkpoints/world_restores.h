// Restores of a daemon's models in its world: node 0 leads them, the others follow.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_WORLD_RESTORES_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_WORLD_RESTORES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/checkpoints/restore_follower.h"
#include "server/checkpoints/restore_leader.h"
#include "server/checkpoints/rollback_leader.h"
#include "server/models/model_store.h"
#include "server/terms/history.h"
#include "server/terms/restore_news.h"

namespace paramshard::server {

// Has this daemon's one role, and passes other daemons' messages (restore_news.h) to it. Models that are being created
// wait for each other: a creation at another node for node 0's answer, and node 0's creation for the creations at the
// others. The timeout bounds all waits.
//
// Thread-safe.
class WorldRestores final : public RestoreListener {
 public:
  // Points where tests hold a restore back.
  enum class Point : uint8_t {
    kReady,    // another node is about to report that it is ready
    kGo,       // node 0 is about to let all daemons go
    kRows,     // any node is about to write its rows
    kWritten,  // any node has written rows and planes: another one is about to report it, node 0 to wait for the others
    kEnd,      // node 0 is about to report that the state is whole
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

  // Begins a drain: ends all waits, and refuses further restores. Idempotent.
  void BeginDrain();

  // Null, except at node 0 and in a world of one daemon.
  RestoreLeader* leader() const { return leader_.get(); }
  // Null, except at any other node.
  RestoreFollower* follower() const { return follower_.get(); }
  // FAILED_PRECONDITION if only another daemon starts restores.
  absl::Status CheckLeads(absl::string_view model) const;

  // Called when a model was created here with its initial values.
  void OnCreatedFresh(const std::string& model);

  void OnRestoreNews(const RestoreNews& news) override;

 private:
  const Options options_;
  std::unique_ptr<RestoreLeader> leader_;
  std::unique_ptr<RollbackLeader> rollbacks_;  // beside it
  std::unique_ptr<RestoreFollower> follower_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_WORLD_RESTORES_H_
