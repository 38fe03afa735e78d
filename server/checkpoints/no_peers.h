// The peers of a restore of a model that lies entirely on one daemon: none.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_NO_PEERS_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_NO_PEERS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/checkpoints/restore_peers.h"
#include "server/checkpoints/restorer.h"
#include "server/models/model.h"
#include "server/terms/history.h"

namespace paramshard::server {

// The one daemon has nothing to agree on: it checks that it holds what was saved.
class NoPeers final : public RestorePeers {
 public:
  explicit NoPeers(int replicas) : replicas_(replicas) {}

  std::optional<HistoryId> history() const override { return std::nullopt; }
  bool can_redo() const override { return true; }
  std::string RollbackWhy(const Model&) const override { return {}; }
  absl::Status Begin() override { return absl::OkStatus(); }
  absl::Status CheckGoesOn() override { return absl::OkStatus(); }
  absl::Status Conclude(const Restorer& restorer) override { return restorer.Check(restorer.content(), replicas_); }
  Restorer::Progress Whole(const Restorer::Progress& own) const override { return own; }
  void Cancel() override {}

 private:
  const int replicas_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_NO_PEERS_H_
