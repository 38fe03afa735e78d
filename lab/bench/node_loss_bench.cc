// How long a training makes no commit when one of its daemons is lost: three daemons of this machine, each with one
// device, a replica and no keeper; --min-replicas=2, and all other settings as they are. Each loss has a world of its
// own, for a daemon that is lost again and again is held back.
//
// Usage: node_loss_bench [MILLIONS [TIMES]]: of parameters, which take 12 bytes of state each. On GPUs where
// PARAMSHARD_TEST_DEVICES says so.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "lab/bench/arguments.h"
#include "lab/bench/matrices.h"
#include "lab/bench/or_die.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/temporary_directory.h"

namespace paramshard {
namespace {

constexpr int kNodes = 3;
constexpr int kLost = 2;  // the node
constexpr absl::Duration kTimeout = absl::Minutes(5);

// The commits that rank 0 has had answered.
class Commits {
 public:
  void Begin(int replicas) {
    absl::MutexLock lock(&mu_);
    ++epoch_;
    replicas_ = replicas;
  }
  void Answer() {
    absl::MutexLock lock(&mu_);
    answers_.push_back({.at = absl::Now(), .epoch = epoch_, .replicas = replicas_});
  }
  int64_t epoch() const {
    absl::MutexLock lock(&mu_);
    return epoch_;
  }

  struct First {
    absl::Time at;
    absl::Duration gap;  // since the commit before
  };
  // Waits for the first commit of `replicas` replicas in an epoch after `epoch`.
  First Await(int replicas, int64_t epoch) const {
    std::optional<First> first;
    const auto is_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const auto found = std::find_if(answers_.begin(), answers_.end(), [&](const auto& answer) {
        return answer.replicas == replicas && answer.epoch > epoch;
      });
      if (found == answers_.end()) return false;
      const absl::Time before = found == answers_.begin() ? found->at : std::prev(found)->at;
      first = First{.at = found->at, .gap = found->at - before};
      return true;
    };
    absl::MutexLock lock(&mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(&is_there), kTimeout)) {
      OrDie(absl::DeadlineExceededError(absl::StrCat("timed out waiting for a commit of ", replicas, " replicas")),
            "train");
    }
    return *first;
  }

 private:
  struct Answered {
    absl::Time at;
    int64_t epoch = 0;
    int replicas = 0;
  };

  mutable absl::Mutex mu_;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  int replicas_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Answered> answers_ ABSL_GUARDED_BY(mu_);
};

// Makes commits without gradients, and attaches again whenever an epoch ends, for good.
void Train(int rank, const std::string& socket_dir, const ModelSpec& spec, Commits* commits) {
  Client client =
      OrDie(Client::Connect({.rank = rank, .socket_dir = socket_dir, .restart_timeout = kTimeout}), "connect");
  while (true) {
    if (!client.CreateModel(spec).ok()) continue;
    absl::StatusOr<Model> model = client.OpenModel(spec);
    if (!model.ok()) continue;
    commits->Begin(model->active_world_size());
    while (true) {
      absl::StatusOr<PendingCommit> commit = model->Commit({});
      if (!commit.ok() || !commit->Wait().ok()) break;
      commits->Answer();
    }
  }
}

// Trainers go on until the process ends.
class World {
 public:
  World(const ModelSpec& spec, const test::TemporaryDirectory* sockets) : sockets_(sockets) {
    for (int node = 0; node < kNodes; ++node) Spawn(node);
    for (auto& daemon : daemons_) OrDie(daemon->AwaitReady(kTimeout), "start a daemon");
    for (int rank = 0; rank < kNodes; ++rank) {
      std::thread([this, rank, spec] { Train(rank, sockets_[rank].path(), spec, &commits_[rank]); }).detach();
    }
    commits_[0].Await(kNodes, 0);
  }

  void Signal(int signal) { daemons_[kLost]->Signal(signal); }
  void Replace() {
    daemons_[kLost].reset();
    Spawn(kLost);
  }
  const Commits& commits() const { return commits_[0]; }

 private:
  void Spawn(int node) {
    std::vector<std::string> flags = test::DeviceFlags(1, node);
    flags.insert(flags.end(), {absl::StrCat("--node=", node), absl::StrCat("--nodes=", kNodes), address_,
                               "--keeper=off", "--log-level=error"});
    if (node == 0) flags.push_back("--min-replicas=2");
    daemons_[node].emplace(test::DaemonProcess::Spawn(test::Program(PARAMSHARDD), sockets_[node].path(), flags));
  }

  const test::TemporaryDirectory* const sockets_;
  const std::string address_ = absl::StrCat("--cluster-address=127.0.0.1:", test::FreePort());
  std::optional<test::DaemonProcess> daemons_[kNodes];
  Commits commits_[kNodes];
};

struct Times {
  double lost = 0;      // from the loss to the next commit
  double returned = 0;  // between two commits when the daemon has come back
};

// kill -9, which closes connections; the daemon is started again when the others have gone on.
Times Kill(World& world) {
  const int64_t epoch = world.commits().epoch();
  const absl::Time begin = absl::Now();
  world.Signal(SIGKILL);
  const absl::Duration lost = world.commits().Await(kNodes - 1, epoch).at - begin;
  world.Replace();
  return {absl::ToDoubleSeconds(lost), absl::ToDoubleSeconds(world.commits().Await(kNodes, epoch).gap)};
}

// The daemon stands still, as if its machine had gone without a word.
Times Silence(World& world) {
  const int64_t epoch = world.commits().epoch();
  const absl::Time begin = absl::Now();
  world.Signal(SIGSTOP);
  const absl::Duration lost = world.commits().Await(kNodes - 1, epoch).at - begin;
  world.Signal(SIGKILL);
  world.Replace();
  return {absl::ToDoubleSeconds(lost), absl::ToDoubleSeconds(world.commits().Await(kNodes, epoch).gap)};
}

// In a process of its own, which ends with all that the world has.
Times Measure(const ModelSpec& spec, const std::function<Times(World&)>& lose) {
  const test::TemporaryDirectory sockets[kNodes];
  test::ChildProcess child = test::ChildProcess::Run([&](test::Board& board) {
    auto* const world = new World(spec, sockets);  // for its trainers' sake never destroyed
    const Times times = lose(*world);
    absl::SNPrintF(board.text, sizeof(board.text), "%f %f", times.lost, times.returned);
    return absl::OkStatus();
  });
  OrDie(child.Await(2 * kTimeout), "measure");
  Times times;
  std::sscanf(child.board().text, "%lf %lf", &times.lost, &times.returned);
  return times;
}

void Print(const char* what, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  std::cout << absl::StreamFormat("  %s: median %.2f s, from %.2f to %.2f", what, seconds[seconds.size() / 2],
                                  seconds.front(), seconds.back())
            << std::endl;
}

void Report(const char* how, const ModelSpec& spec, int times, const std::function<Times(World&)>& lose) {
  std::vector<double> lost, returned;
  for (int i = 0; i < times; ++i) {
    const Times measured = Measure(spec, lose);
    lost.push_back(measured.lost);
    returned.push_back(measured.returned);
  }
  std::cout << how << std::endl;
  Print("from the loss to the next commit", lost);
  Print("without a commit when it is back, and healed", returned);
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  using namespace paramshard;
  int millions = 100;
  int times = 3;
  ReadCounts(argc, argv, {{"MILLIONS", &millions, 1, 20'000}, {"TIMES", &times, 1, 100}});
  const ModelSpec spec = Matrices(millions);
  std::cout << millions << " million parameters, " << kMatricesStateBytes * millions / 1e3 << " GB of state, " << times
            << " worlds each" << std::endl;
  Report("a daemon that is killed", spec, times, Kill);
  Report("a daemon that falls silent", spec, times, Silence);
  return 0;
}
