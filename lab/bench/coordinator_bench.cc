// Cost of the coordinator as worlds grow. Nodes are simulated in this process, each with eight devices.
//
// Usage: coordinator_bench [NODES...], without: 8 64 256 1000.
//
// A vote is timed from the first node's vote until every node has its answer: nodes that are called when there is one,
// a thread for each node that waits, and nodes that call over gRPC on loopback, all of them this process. Messages and
// bytes are the ones that node 0 sends and receives, as protobuf serializes them.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/time.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"
#include "paramshard/v1/cluster.grpc.pb.h"
#include "server/base/steady_time.h"
#include "server/data_plane/mesh_addresses.h"
#include "server/world/cluster_messages.h"
#include "server/world/cluster_service.h"
#include "server/world/coordinator.h"

namespace paramshard::server {
namespace {

constexpr int kDevices = 8;
constexpr int kCommands = 200;  // of a step
constexpr int kMostNodes = 4096;
constexpr absl::Duration kTimeout = absl::Minutes(1);

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

absl::Duration Since(SteadyTime begin) { return absl::FromChrono(SteadyNow() - begin); }

// Messages that pass through node 0.
struct Traffic {
  int64_t messages = 0;
  int64_t bytes = 0;

  void Add(const google::protobuf::Message& message, int64_t times = 1) {
    messages += times;
    bytes += times * static_cast<int64_t>(message.ByteSizeLong());
  }
};

std::string Text(const Traffic& traffic) {
  return absl::StrFormat("%d messages of %.3f MB", traffic.messages, static_cast<double>(traffic.bytes) / 1e6);
}

// Counts the messages that node 0 would send to a node.
class CountingSink final : public NodeSink {
 public:
  explicit CountingSink(Traffic* traffic) : traffic_(traffic) {}

  void Tell(const ToNode& message) override {
    traffic_->Add(ToProto(message));
    if (const auto* const ended = std::get_if<EpochEnded>(&message); ended != nullptr) OrDie(ended->why, "an epoch");
    if (const auto* const refused = std::get_if<EpochRefused>(&message); refused != nullptr) {
      OrDie(refused->why, "an epoch");
    }
  }
  void OnStop() override {}

 private:
  Traffic* const traffic_;
};

CommitVote VoteOf(int node, int64_t commit_number) {
  CommitVote vote{.model = "m",
                  .epoch = 1,
                  .commit_number = commit_number,
                  .commands = {.number = commit_number * kCommands, .hash = ~absl::uint128(commit_number)},
                  .sums = {}};
  for (int device = 0; device < kDevices; ++device) {
    vote.sums.push_back({.rank = node * kDevices + device, .square_sum = 1.5, .non_finite_count = 0});
  }
  return vote;
}

// Every node votes; the slowest answer counts.
class SimulatedWorld {
 public:
  explicit SimulatedWorld(int nodes) : nodes_(nodes), coordinator_(nodes) {
    for (int node = 0; node < nodes; ++node) sinks_.emplace_back(node == 0 ? &own_ : &joins_);
  }

  void Join() {
    const SteadyTime begin = SteadyNow();
    for (int node = 0; node < nodes_; ++node) OrDie(coordinator_.Join(node, kDevices, &sinks_[node]), "join");
    std::cout << absl::StrFormat("  joins: %.2f ms, %s\n", Milliseconds(Since(begin)), Text(joins_));
  }

  // Every node has a mesh for each device, of which each other node needs an address.
  void CountAddresses() {
    MeshAddresses addresses;
    for (int device = 0; device < kDevices; ++device) {
      addresses[{device, nodes_ - 1}] = absl::StrCat(std::string(128, 'h'), 10'000'000 + device * nodes_);
    }
    v1::PutValueRequest put;
    v1::GetValueResponse got;
    for (int node = 0; node < nodes_; ++node) {
      put.add_parts(EncodeAddresses(addresses));
      got.add_parts(EncodeAddresses(addresses));
    }
    Traffic traffic;
    traffic.Add(put, nodes_ - 1);
    traffic.Add(got, nodes_ - 1);
    std::cout << "  addresses of an epoch: " << Text(traffic) << "\n";
  }

  void StartEpoch() {
    const SteadyTime begin = SteadyNow();
    for (int node = 0; node < nodes_; ++node) {
      ModelReport report;
      report.model = "m";
      report.shard_size = kDevices;
      for (int device = 0; device < kDevices; ++device) report.attached_ranks.push_back(node * kDevices + device);
      OrDie(coordinator_.Step(node, report), "a report");
    }
    std::cout << absl::StrFormat("  start of an epoch: %.2f ms\n", Milliseconds(Since(begin)));
  }

  // Commands do not pass through node 0, but for the hash in a vote.
  void CountStep() {
    Traffic step;
    step.Add(VoteMessage(nodes_ - 1, VoteOf(nodes_ - 1, 1), kTimeout), nodes_ - 1);
    v1::VoteResponse answer;
    *answer.mutable_decision() = DecisionMessage({.apply = true, .square_sum = 1.5});
    step.Add(answer, nodes_ - 1);
    std::cout << absl::StrFormat("  a step of %d commands: %s\n", kCommands, Text(step));
  }

  void Vote(int times) {
    std::vector<absl::Duration> took;
    for (int i = 0; i < times; ++i) {
      ++commit_number_;
      absl::BlockingCounter answers(nodes_);
      const SteadyTime begin = SteadyNow();
      for (int node = 0; node < nodes_; ++node) {
        coordinator_.Vote(node, VoteOf(node, commit_number_), [&](const absl::StatusOr<CommitDecision>& decision) {
          OrDie(decision.status(), "vote");
          answers.DecrementCount();
        });
      }
      answers.Wait();
      took.push_back(Since(begin));
    }
    Print("a vote", std::move(took));
  }

  void VoteByThreads(int times) {
    std::vector<SteadyTime> begun(times);
    std::vector<std::vector<SteadyTime>> answered(times, std::vector<SteadyTime>(nodes_));
    std::barrier all(nodes_);
    std::vector<std::thread> threads;
    for (int node = 0; node < nodes_; ++node) {
      threads.emplace_back([&, node] {
        for (int i = 0; i < times; ++i) {
          all.arrive_and_wait();
          if (node == 0) begun[i] = SteadyNow();
          OrDie(coordinator_.Vote(node, VoteOf(node, commit_number_ + i + 1), kTimeout).status(), "vote");
          answered[i][node] = SteadyNow();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    commit_number_ += times;
    std::vector<absl::Duration> took;
    for (int i = 0; i < times; ++i) {
      took.push_back(absl::FromChrono(*std::max_element(answered[i].begin(), answered[i].end()) - begun[i]));
    }
    Print("a vote, a thread for each node", std::move(took));
  }

  void VoteOverGrpc(int times) {
    ClusterServiceImpl service(&coordinator_);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    const auto stub = v1::ClusterService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
    std::vector<absl::Duration> took;
    for (int i = 0; i < times; ++i) took.push_back(VoteOnceOverGrpc(*stub, ++commit_number_));
    Print("a vote over gRPC", std::move(took));
    server->Shutdown();
  }

 private:
  absl::Duration VoteOnceOverGrpc(v1::ClusterService::Stub& stub, int64_t commit_number) {
    std::vector<grpc::ClientContext> contexts(nodes_);
    std::vector<v1::VoteRequest> requests(nodes_);
    std::vector<v1::VoteResponse> responses(nodes_);
    for (int node = 1; node < nodes_; ++node) {
      requests[node] = VoteMessage(node, VoteOf(node, commit_number), kTimeout);
    }
    absl::BlockingCounter answers(nodes_ - 1);
    const SteadyTime begin = SteadyNow();
    for (int node = 1; node < nodes_; ++node) {
      stub.async()->Vote(&contexts[node], &requests[node], &responses[node], [&, node](const grpc::Status& status) {
        OrDie(FromGrpcStatus(status), "vote");
        if (!responses[node].has_decision()) OrDie(absl::DeadlineExceededError("no decision"), "vote");
        answers.DecrementCount();
      });
    }
    OrDie(coordinator_.Vote(0, VoteOf(0, commit_number), kTimeout).status(), "vote");
    answers.Wait();
    return Since(begin);
  }

  static void Print(const char* what, std::vector<absl::Duration> took) {
    std::sort(took.begin(), took.end());
    std::cout << absl::StrFormat("  %s: median %.3f ms, %.3f to %.3f ms of %d\n", what,
                                 Milliseconds(took[took.size() / 2]), Milliseconds(took.front()),
                                 Milliseconds(took.back()), took.size())
              << std::flush;
  }

  const int nodes_;
  Coordinator coordinator_;
  Traffic joins_, own_;  // node 0 sends itself nothing
  std::vector<CountingSink> sinks_;
  int64_t commit_number_ = 0;
};

void Measure(int nodes) {
  const int times = nodes >= 512 ? 20 : 100;
  std::cout << nodes << " nodes\n";
  SimulatedWorld world(nodes);
  world.Join();
  world.CountAddresses();
  world.StartEpoch();
  world.CountStep();
  world.Vote(times);
  world.VoteByThreads(times);
  world.VoteOverGrpc(times);
}

}  // namespace
}  // namespace paramshard::server

int main(int argc, char** argv) {
  std::vector<int> worlds;
  for (int i = 1; i < argc; ++i) {
    int nodes = 0;
    if (!absl::SimpleAtoi(argv[i], &nodes) || nodes < 2 || nodes > paramshard::server::kMostNodes) {
      paramshard::EndWithUsage(absl::StrCat("argument ", i, ", NODES: want a number from 2 to ",
                                            paramshard::server::kMostNodes, ", got '", argv[i], "'"));
    }
    worlds.push_back(nodes);
  }
  if (worlds.empty()) worlds = {8, 64, 256, 1000};
  for (const int nodes : worlds) paramshard::server::Measure(nodes);
}
