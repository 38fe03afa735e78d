// The coordinator under random interleavings of reports, votes, ends and broken connections.
#include <deque>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/world/coordinator.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

constexpr int kNodes = 3;
constexpr int kDevices[kNodes] = {2, 1, 2};
constexpr int kFirstRank[kNodes] = {0, 2, 3};

// Checks invariants of the world that hold for any order of events.
class Oracle {
 public:
  void Reported(int node, const ModelReport& report) { waiting_[node] = report.attached_ranks; }
  void Lost(int node) { waiting_[node].clear(); }

  // Told by node 0's sink, in the coordinator's own order.
  void Started(int64_t epoch) {
    EXPECT_GT(epoch, last_epoch_);
    last_epoch_ = epoch;
    for (int node = 0; node < kNodes; ++node) {
      EXPECT_EQ(waiting_[node].size(), static_cast<size_t>(kDevices[node])) << "epoch " << epoch << " node " << node;
    }
    ForgetWaiting();
  }
  void Ended() { ForgetWaiting(); }

  void Decided(int64_t epoch, int64_t commit_number, const CommitDecision& decision) {
    const auto [it, first] = decisions_.try_emplace(commit_number, epoch, decision);
    EXPECT_EQ(it->second.first, epoch) << "commit " << commit_number << " is decided twice";
    EXPECT_EQ(it->second.second.apply, decision.apply);
    EXPECT_EQ(it->second.second.square_sum, decision.square_sum);
    EXPECT_EQ(it->second.second.non_finite_count, decision.non_finite_count);
    EXPECT_EQ(aborted_.count({epoch, commit_number}), 0u);
  }
  void Aborted(int64_t epoch, int64_t commit_number) {
    aborted_.insert({epoch, commit_number});
    const auto it = decisions_.find(commit_number);
    EXPECT_TRUE(it == decisions_.end() || it->second.first != epoch) << "commit " << commit_number;
  }

  size_t decisions() const { return decisions_.size(); }
  int64_t epochs() const { return last_epoch_; }

 private:
  void ForgetWaiting() {
    for (auto& ranks : waiting_) ranks.clear();
  }

  std::vector<int> waiting_[kNodes];
  int64_t last_epoch_ = 0;
  std::map<int64_t, std::pair<int64_t, CommitDecision>> decisions_;
  std::set<std::pair<int64_t, int64_t>> aborted_;
};

// Hears everything at once for the oracle, and late for the node.
class NodeEar final : public NodeSink {
 public:
  void Tell(const ToNode& message) override {
    const Overloaded hear = {
        [this](const EpochStart& start) {
          if (oracle != nullptr) oracle->Started(start.epoch);
          messages.push_back({.start = true, .model = "m", .epoch = start.epoch});
        },
        [this](const EpochEnded& ended) {
          if (oracle != nullptr) oracle->Ended();
          messages.push_back({.model = "m", .epoch = ended.epoch, .why = ended.why});
        },
        [this](const EpochRefused& refused) {
          if (oracle != nullptr) oracle->Ended();
          messages.push_back({.refused = true, .model = "m", .why = refused.why});
        },
        [](const auto&) {},
    };
    std::visit(hear, message);
  }
  void OnStop() override {}

  Oracle* oracle = nullptr;
  std::deque<ReceivedMessage> messages;
};

// A daemon that behaves: it votes in the epoch that it knows, applies what is decided, and stays in
// doubt until it knows.
class Node {
 public:
  Node(int number, Coordinator* coordinator, Oracle* oracle)
      : number_(number), coordinator_(coordinator), oracle_(oracle) {
    if (number == 0) ear_.oracle = oracle;
    Join();
  }

  void Step(std::mt19937& random) {
    switch (random() % 16) {
      case 0:
        return number_ == 0 ? EndEpoch() : BreakConnection();
      case 1:
        return EndEpoch();
      case 2:
      case 3:
      case 4:
        return Attach(random);
      case 5:
      case 6:
      case 7:
        return Hear();
      default:
        return Vote(random);
    }
  }

 private:
  void Join() { EXPECT_OK(coordinator_->Join(number_, kDevices[number_], &ear_)); }

  void BreakConnection() {
    oracle_->Lost(number_);
    coordinator_->Leave(number_);
    ear_.messages.clear();
    running_ = 0;
    attached_.clear();
    Join();
  }

  void EndEpoch() {
    if (running_ == 0) return;
    const server::EndEpoch end{.model = "m", .epoch = running_, .why = absl::AbortedError("a trainer left")};
    EXPECT_OK(coordinator_->Step(number_, end));
  }

  void Attach(std::mt19937& random) {
    // Trainers wait for an epoch while none runs and nothing is in doubt.
    if (running_ != 0 || in_doubt_.has_value() || !ear_.messages.empty()) return;
    attached_.insert(kFirstRank[number_] + static_cast<int>(random() % kDevices[number_]));
    const ModelReport report = MakeReport({attached_.begin(), attached_.end()}, commit_number_, version_);
    oracle_->Reported(number_, report);
    EXPECT_OK(coordinator_->Step(number_, report));
  }

  void Hear() {
    if (ear_.messages.empty()) return;
    const ReceivedMessage message = ear_.messages.front();
    ear_.messages.pop_front();
    running_ = message.start ? message.epoch : 0;
    attached_.clear();
    // States never differ: all apply the same decisions.
    EXPECT_FALSE(message.refused) << message.why;
  }

  void Vote(std::mt19937& random) {
    if (!in_doubt_.has_value()) {
      if (running_ == 0) return;
      in_doubt_ = MakeVote(running_, commit_number_ + 1, Sums(random));
    }
    const absl::StatusOr<CommitDecision> decision = coordinator_->Vote(number_, *in_doubt_, absl::ZeroDuration());
    if (decision.ok()) {
      oracle_->Decided(in_doubt_->epoch, in_doubt_->commit_number, *decision);
      ++commit_number_;
      version_ += decision->apply ? 1 : 0;
      in_doubt_.reset();
    } else if (absl::IsAborted(decision.status())) {
      oracle_->Aborted(in_doubt_->epoch, in_doubt_->commit_number);
      in_doubt_.reset();
    } else {
      EXPECT_THAT(decision, StatusIs(absl::StatusCode::kDeadlineExceeded));
    }
  }

  std::vector<RankSum> Sums(std::mt19937& random) const {
    std::vector<RankSum> sums;
    for (int device = 0; device < kDevices[number_]; ++device) {
      sums.push_back({kFirstRank[number_] + device, static_cast<double>(random()), random() % 20 == 0 ? 1 : 0});
    }
    return sums;
  }

  const int number_;
  Coordinator* const coordinator_;
  Oracle* const oracle_;
  NodeEar ear_;
  int64_t running_ = 0;
  int64_t commit_number_ = 0;
  int64_t version_ = 0;
  std::set<int> attached_;
  std::optional<CommitVote> in_doubt_;
};

TEST(CoordinatorRandomTest, NodesNeverPartWaysUnderAnyInterleaving) {
  const uint32_t seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  size_t decisions = 0;
  int64_t epochs = 0;
  for (int round = 0; round < 20 && !::testing::Test::HasFailure(); ++round) {
    Coordinator coordinator(kNodes);
    Oracle oracle;
    std::deque<Node> nodes;
    for (int node = 0; node < kNodes; ++node) nodes.emplace_back(node, &coordinator, &oracle);
    for (int step = 0; step < 20000 && !::testing::Test::HasFailure(); ++step) nodes[random() % kNodes].Step(random);
    decisions += oracle.decisions();
    epochs += oracle.epochs();
  }
  // Else the test has seen nothing.
  EXPECT_GT(decisions, 100u);
  EXPECT_GT(epochs, 100);
}

}  // namespace
}  // namespace paramshard::server
