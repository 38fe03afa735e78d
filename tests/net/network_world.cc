#include "tests/net/network_world.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::test {

absl::StatusOr<std::unique_ptr<NetworkWorld>> NetworkWorld::Start(const CampaignOptions& options,
                                                                  KeptServer::Shape shape, int64_t commits) {
  const int nodes = options.ranks();
  ASSIGN_OR_RETURN(Machines machines, Machines::Make(nodes));
  std::unique_ptr<NetworkWorld> world(new NetworkWorld(std::move(machines)));
  std::vector<KeptServer::Site> sites;
  for (int node = 0; node < nodes; ++node) {
    world->clocks_.emplace_back(options.wall_clock, absl::StrCat(world->folder_.path(), "/clock", node));
    const tls::Files files = world->Certify(node);
    sites.push_back({.flags = {absl::StrCat("--cluster-address=", Machines::Address(0), ":7777"), "--step-timeout=10m",
                               "--trusted-data-network=on", absl::StrCat("--data-address=", Machines::Address(node)),
                               "--tls-cert=" + files.cert, "--tls-key=" + files.key, "--tls-ca=" + files.ca},
                     .surroundings = {.network = world->machines_.network(node),
                                      .environment = world->clocks_.back().Environment()}});
  }
  ASSIGN_OR_RETURN(KeptServer server, KeptServer::Start(options, shape, std::move(sites), commits));
  world->server_ = std::make_unique<KeptServer>(std::move(server));
  return world;
}

// Valid at whatever time steps of a clock lead to.
tls::Files NetworkWorld::Certify(int node) const {
  const TestAuthority::Validity validity{.from = absl::Now() - absl::Hours(48), .to = absl::Now() + absl::Hours(48)};
  return Install(absl::StrCat(folder_.path(), "/tls", node),
                 authority_.Issue({absl::StrCat(kWorldUri, "/node/", node)}, validity), authority_.cert());
}

}  // namespace paramshard::test
