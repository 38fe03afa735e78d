#include "lab/campaign/network_world.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shared_memory/file_descriptor.h"
#include "kernels/base/status_macros.h"

namespace paramshard::test {

std::string NetworkWorld::LogOf(const std::string& logs, int node) { return absl::StrCat(logs, node, ".log"); }

absl::StatusOr<std::unique_ptr<NetworkWorld>> NetworkWorld::Start(const Spec& spec) {
  const int nodes = spec.daemons.ranks();
  ASSIGN_OR_RETURN(Machines machines, Machines::Make(nodes + spec.mirrors));
  RETURN_IF_ERROR(machines.CheckLosesAndThrottles());
  std::unique_ptr<NetworkWorld> world(new NetworkWorld(std::move(machines)));
  std::vector<KeptServer::Site> sites;
  for (int node = 0; node < nodes; ++node) {
    world->clocks_.emplace_back(spec.daemons.wall_clock, absl::StrCat(world->folder_.path(), "/clock", node));
    const tls::Files files = world->Certify(node);
    Surroundings surroundings = world->machines_.Of(node);
    const auto clock = world->clocks_.back().Environment();
    surroundings.environment.insert(surroundings.environment.end(), clock.begin(), clock.end());
    sites.push_back({.flags = {absl::StrCat("--cluster-address=", Machines::Address(0), ":7777"), "--step-timeout=10m",
                               "--trusted-data-network=on", absl::StrCat("--data-address=", Machines::Address(node)),
                               "--tls-cert=" + files.cert, "--tls-key=" + files.key, "--tls-ca=" + files.ca},
                     .devices = {spec.daemons.devices[node]},
                     .surroundings = std::move(surroundings),
                     .log = LogOf(spec.logs, node)});
  }
  for (int node = 0; node < nodes && spec.mirrors > 0; ++node) {
    sites[node].flags.push_back(absl::StrCat("--listen=", Machines::Address(node), ":7778"));
  }
  const std::string saves = world->folder_.path() + "/saves";
  if (spec.saves && mkdir(saves.c_str(), 0700) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("mkdir ", saves));
  for (int node = 0; node < nodes && spec.saves; ++node) {
    sites[node].flags.push_back("--save-dir=" + saves);
  }
  if (spec.keeps_decisions) {
    const std::string folder = world->folder_.path() + "/state";
    if (mkdir(folder.c_str(), 0700) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("mkdir ", folder));
    sites[0].flags.push_back("--state-dir=" + folder);
  }
  if (spec.shape == KeptServer::Shape::kElastic) {
    // The majority.
    sites[0].flags.push_back(absl::StrCat("--min-replicas=", nodes / 2 + 1));
    sites[0].flags.push_back("--replica-grace=500ms");
  }
  ASSIGN_OR_RETURN(
      KeptServer server,
      KeptServer::Start(spec.daemons, {.shape = spec.shape, .sites = std::move(sites), .commits = spec.commits}));
  world->server_ = std::make_unique<KeptServer>(std::move(server));
  for (int mirror = 0; mirror < spec.mirrors; ++mirror) {
    world->mirrors_.push_back({.sockets = {}, .log = LogOf(spec.logs, world->mirror_machine(mirror))});
    RETURN_IF_ERROR(world->StartMirror(mirror));
  }
  return world;
}

absl::Status NetworkWorld::StartMirror(int number) {
  Mirror& mirror = mirrors_[number];
  const int machine = mirror_machine(number);
  const tls::Files files = CertifyMirror(number);
  Surroundings surroundings = machines_.Of(machine);
  const wire::FileDescriptor log(open(mirror.log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  surroundings.standard_error = log.get();
  mirror.daemon.reset();
  mirror.daemon.emplace(
      DaemonProcess::Spawn(server_->options().daemon, mirror.sockets.path(),
                           {absl::StrCat("--mirror=", Machines::Address(0), ":7778"), "--keeper=off",
                            absl::StrCat("--listen=", Machines::Address(machine), ":7778"), "--tls-cert=" + files.cert,
                            "--tls-key=" + files.key, "--tls-ca=" + files.ca},
                           surroundings));
  return mirror.daemon->AwaitReady();
}

// The certificates are valid at any time that clock steps lead to.
tls::Files NetworkWorld::CertifyAs(const std::string& folder, const std::string& role) const {
  const TestAuthority::Validity validity{.from = absl::Now() - absl::Hours(48), .to = absl::Now() + absl::Hours(48)};
  return Install(absl::StrCat(folder_.path(), "/", folder),
                 authority_.Issue({absl::StrCat(kWorldUri, "/", role)}, validity), authority_.cert());
}

tls::Files NetworkWorld::Certify(int node) const {
  return CertifyAs(absl::StrCat("tls", node), absl::StrCat("node/", node));
}

tls::Files NetworkWorld::CertifyMirror(int mirror) const { return CertifyAs(absl::StrCat("mirror", mirror), "reader"); }

}  // namespace paramshard::test
