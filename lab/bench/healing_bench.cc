// Time in which a daemon gets its lost state from a replica: from the call that opens the model to the epoch's start,
// in turns with an epoch without healing. Two daemons of this machine, each with one device and without a keeper.
//
// Usage: healing_bench [MILLIONS [TIMES]]: millions of parameters, with 12 bytes of state each. On GPUs if
// PARAMSHARD_TEST_DEVICES says so.

#include <algorithm>
#include <future>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "lab/bench/arguments.h"
#include "lab/bench/matrices.h"
#include "lab/bench/or_die.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/temporary_directory.h"

namespace paramshard {
namespace {

constexpr int kNodes = 2;
constexpr absl::Duration kTimeout = absl::Minutes(5);

class World {
 public:
  explicit World(int millions) : spec_(Matrices(millions)) {
    for (int node = 0; node < kNodes; ++node) Spawn(node);
    for (auto& daemon : daemons_) OrDie(daemon->AwaitReady(kTimeout), "start a daemon");
  }

  // Both ranks, until the epoch has started; then a commit, without gradients.
  absl::Duration Open() {
    std::vector<std::future<absl::Duration>> ranks;
    for (int rank = 0; rank < kNodes; ++rank) {
      ranks.push_back(std::async(std::launch::async, [this, rank] { return OpenRank(rank); }));
    }
    absl::Duration longest;
    for (auto& rank : ranks) longest = std::max(longest, rank.get());
    return longest;
  }

  // Node 1 and all that it has.
  void Lose() {
    daemons_[1].reset();
    Spawn(1);
    OrDie(daemons_[1]->AwaitReady(kTimeout), "start a daemon");
  }

 private:
  void Spawn(int node) {
    std::vector<std::string> flags = test::DeviceFlags(1, node);
    flags.insert(flags.end(), {absl::StrCat("--node=", node), absl::StrCat("--nodes=", kNodes), address_,
                               "--keeper=off", "--log-level=error"});
    daemons_[node].emplace(test::DaemonProcess::Spawn(test::Program(PARAMSHARDD), sockets_[node].path(), flags));
  }

  absl::Duration OpenRank(int rank) const {
    Client client = OrDie(Client::Connect({.rank = rank, .socket_dir = sockets_[rank].path()}), "connect");
    OrDie(client.CreateModel(spec_).status(), "create");
    const absl::Time begin = absl::Now();
    Model model = OrDie(client.OpenModel(spec_), "open");
    const absl::Duration took = absl::Now() - begin;
    OrDie(OrDie(model.Commit({}), "commit").Wait(), "commit");
    return took;
  }

  const ModelSpec spec_;
  const std::string address_ = absl::StrCat("--cluster-address=127.0.0.1:", test::FreePort());
  test::TemporaryDirectory sockets_[kNodes];
  std::optional<test::DaemonProcess> daemons_[kNodes];
};

void Print(const char* what, std::vector<double> values, const char* format) {
  std::sort(values.begin(), values.end());
  std::cout << what << ": median "
            << absl::StreamFormat(*absl::ParsedFormat<'f'>::New(format), values[values.size() / 2]) << ", from "
            << values.front() << " to " << values.back() << std::endl;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  using namespace paramshard;
  int millions = 100;
  int times = 5;
  ReadCounts(argc, argv, {{"MILLIONS", &millions, 1, 20'000}, {"TIMES", &times, 1, 100}});
  const double gigabytes = kMatricesStateBytes * millions / 1e3;
  World world(millions);
  world.Open();
  std::vector<double> plain, healed, rates;
  for (int i = 0; i < times; ++i) {
    plain.push_back(absl::ToDoubleSeconds(world.Open()));
    world.Lose();
    healed.push_back(absl::ToDoubleSeconds(world.Open()));
    rates.push_back(gigabytes / (healed.back() - plain.back()));
  }
  std::cout << millions << " million parameters, " << gigabytes << " GB of state, " << times << " times" << std::endl;
  Print("seconds to an epoch", plain, "%.3f");
  Print("seconds to an epoch with a healing", healed, "%.3f");
  Print("GB of state per second that it takes longer", rates, "%.2f");
  return 0;
}
