// A world of daemons with keepers, each on a machine of its own, over Gloo and mTLS.
#ifndef PARAMSHARD_LAB_CAMPAIGN_NETWORK_WORLD_H_
#define PARAMSHARD_LAB_CAMPAIGN_NETWORK_WORLD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lab/campaign/campaign.h"
#include "lab/campaign/kept_server.h"
#include "tests/net/machines.h"
#include "tests/support/daemon_process.h"
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
    int mirrors = 0;               // on machines of their own, behind those of the daemons
    bool saves = false;            // all daemons have a --save-dir
    std::string logs;              // the daemons' log files, up to the number of the node, or of the machine
  };
  // FAILED_PRECONDITION of Machines::Make(), or if machines cannot treat packets as asked.
  static absl::StatusOr<std::unique_ptr<NetworkWorld>> Start(const Spec& spec);
  static std::string LogOf(const std::string& logs, int node);

  const Machines& machines() const { return machines_; }
  KeptServer& server() { return *server_; }
  void StepClock(int node, absl::Duration by) { clocks_[node].Step(by); }
  // Gives a daemon another certificate.
  tls::Files Certify(int node) const;

  // A mirror without a keeper: it is started again by hand.
  absl::Status StartMirror(int mirror);
  DaemonProcess& mirror(int mirror) { return *mirrors_[mirror].daemon; }
  const std::string& mirror_sockets(int mirror) const { return mirrors_[mirror].sockets.path(); }
  int mirror_machine(int mirror) const { return server_->daemons() + mirror; }
  tls::Files CertifyMirror(int mirror) const;

 private:
  struct Mirror {
    TemporaryDirectory sockets;
    std::string log;
    std::optional<DaemonProcess> daemon = std::nullopt;
  };

  tls::Files CertifyAs(const std::string& folder, const std::string& role) const;
  explicit NetworkWorld(Machines machines) : machines_(std::move(machines)) {}

  Machines machines_;
  TestAuthority authority_;
  TemporaryDirectory folder_;
  std::vector<SteppedClock> clocks_;
  std::unique_ptr<KeptServer> server_;
  std::vector<Mirror> mirrors_;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_NETWORK_WORLD_H_
