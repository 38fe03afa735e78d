// A world of daemons with keepers, each on a machine of its own, over Gloo and mTLS.
#ifndef PARAMSHARD_LAB_CAMPAIGN_NETWORK_WORLD_H_
#define PARAMSHARD_LAB_CAMPAIGN_NETWORK_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lab/campaign/campaign.h"
#include "lab/campaign/kept_server.h"
#include "tests/net/machines.h"
#include "tests/support/stepped_clock.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::test {

class NetworkWorld {
 public:
  struct Spec {
    CampaignOptions daemons = {};  // one for each of the devices
    KeptServer::Shape shape = KeptServer::Shape::kReplicas;
    bool keeps_decisions = false;  // node 0 has a folder for --state-dir
    int64_t commits = 1;           // of a training
    std::string logs;              // the daemons' log files, up to the node's number
  };
  // FAILED_PRECONDITION of Machines::Make(), or if machines cannot treat packets as asked.
  static absl::StatusOr<std::unique_ptr<NetworkWorld>> Start(const Spec& spec);
  static std::string LogOf(const std::string& logs, int node);

  const Machines& machines() const { return machines_; }
  KeptServer& server() { return *server_; }
  void StepClock(int node, absl::Duration by) { clocks_[node].Step(by); }
  // Gives a daemon another certificate.
  tls::Files Certify(int node) const;

 private:
  explicit NetworkWorld(Machines machines) : machines_(std::move(machines)) {}

  Machines machines_;
  TestAuthority authority_;
  TemporaryDirectory folder_;
  std::vector<SteppedClock> clocks_;
  std::unique_ptr<KeptServer> server_;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_NETWORK_WORLD_H_
