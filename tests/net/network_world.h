// A world of daemons with keepers, each on a machine of its own, over Gloo and mTLS.
#ifndef PARAMSHARD_TESTS_NET_NETWORK_WORLD_H_
#define PARAMSHARD_TESTS_NET_NETWORK_WORLD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/campaign/campaign.h"
#include "tests/campaign/kept_server.h"
#include "tests/net/machines.h"
#include "tests/support/stepped_clock.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::test {

class NetworkWorld {
 public:
  // One daemon for each of the options' devices. FAILED_PRECONDITION as Machines::Make.
  static absl::StatusOr<std::unique_ptr<NetworkWorld>> Start(const CampaignOptions& options, KeptServer::Shape shape,
                                                             int64_t commits);

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

#endif  // PARAMSHARD_TESTS_NET_NETWORK_WORLD_H_
