// Remembers what became of epochs, and waits for it.
#ifndef PARAMSHARD_TESTS_SERVER_WORLD_RECORDING_LISTENER_H_
#define PARAMSHARD_TESTS_SERVER_WORLD_RECORDING_LISTENER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/base/steady_cond_var.h"
#include "server/terms/cluster.h"
#include "server/world/coordinator.h"

namespace paramshard::server {

struct ReceivedMessage {
  bool start = false;  // else an end, or
  bool refused = false;
  std::string model = {};
  int64_t epoch = 0;
  absl::Status why = {};
  std::string history_id = {};                                 // of a start
  std::vector<int> active = {};                                // likewise
  std::vector<Healing> healings = {};                          // likewise
  std::optional<HistoryFork> fork = {};                        // likewise
  std::optional<int64_t> last_command = {};                    // then neither of them
  std::optional<CommandsThrough> commands_wanted_unless = {};  // likewise
  std::optional<SaveMessage> save = {};                        // likewise
  std::optional<RestoreMessage> restore = {};                  // likewise
};

class RecordingListener final : public EpochListener, public NodeSink {
 public:
  void Hear(const ToNode& message) override { Tell(message); }
  void Tell(const ToNode& message) override {
    const Overloaded add = {
        [this](const EpochStart& start) {
          Add({.start = true,
               .model = start.model,
               .epoch = start.epoch,
               .history_id = start.history_id,
               .active = start.active,
               .healings = start.healings,
               .fork = start.fork});
        },
        [this](const LastCommand& last) {
          Add({.model = last.model, .epoch = last.epoch, .last_command = last.command});
        },
        [this](const CommandsWanted& wanted) {
          Add({.model = wanted.model, .epoch = wanted.epoch, .commands_wanted_unless = wanted.unless});
        },
        [this](const EpochEnded& ended) { Add({.model = ended.model, .epoch = ended.epoch, .why = ended.why}); },
        [this](const EpochRefused& refused) { Add({.refused = true, .model = refused.model, .why = refused.why}); },
        // That a stream has broken shows in the epochs.
        [this](const SaveMessage& message) {
          if (!std::holds_alternative<SaveLeaderLost>(message.what)) Add({.model = message.model, .save = message});
        },
        [this](const RestoreMessage& message) {
          if (const auto* const lost = std::get_if<RestoreFollowerLost>(&message.what); lost != nullptr) {
            absl::MutexLock lock(&mu_);
            lost_followers_.push_back(lost->node);
          } else if (!std::holds_alternative<RestoreLeaderLost>(message.what)) {
            Add({.model = message.model, .restore = message});
          }
        },
        [this](const Welcome& welcome) {
          absl::MutexLock lock(&mu_);
          welcome.device_counts.empty() ? welcomes_.push_back(welcome.nodes) : worlds_.push_back(welcome.device_counts);
        },
        [this](const Moved& moved) {
          absl::MutexLock lock(&mu_);
          moves_.push_back(moved.connection);
        },
        [](const Probe&) {},
    };
    std::visit(add, message);
  }
  void OnStop() override {}

  // Returns the next message about a model; an INTERNAL end if none comes within 30 seconds.
  ReceivedMessage Next() {
    const SteadyTime deadline = SteadyDeadline(absl::Seconds(30));
    absl::MutexLock lock(&mu_);
    while (messages_.empty()) {
      if (!changed_.WaitUntil(&mu_, deadline)) continue;
      return {.epoch = -1, .why = absl::InternalError("no message")};
    }
    ReceivedMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

  bool empty() {
    absl::MutexLock lock(&mu_);
    return messages_.empty();
  }
  // Messages of no model.
  std::vector<int> lost_followers() {
    absl::MutexLock lock(&mu_);
    return lost_followers_;
  }
  std::vector<int> welcomes() {
    absl::MutexLock lock(&mu_);
    return welcomes_;
  }
  std::vector<std::vector<int>> worlds() {
    absl::MutexLock lock(&mu_);
    return worlds_;
  }
  std::vector<int64_t> moves() {
    absl::MutexLock lock(&mu_);
    return moves_;
  }

 private:
  void Add(ReceivedMessage message) {
    absl::MutexLock lock(&mu_);
    messages_.push_back(std::move(message));
    changed_.SignalAll();
  }

  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::deque<ReceivedMessage> messages_ ABSL_GUARDED_BY(mu_);
  std::vector<int> lost_followers_ ABSL_GUARDED_BY(mu_);
  std::vector<int> welcomes_ ABSL_GUARDED_BY(mu_);
  std::vector<std::vector<int>> worlds_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> moves_ ABSL_GUARDED_BY(mu_);
};

inline CommitVote MakeVote(int64_t epoch, int64_t commit_number, std::vector<RankSum> sums) {
  CommitVote vote;
  vote.model = "m";
  vote.epoch = epoch;
  vote.commit_number = commit_number;
  vote.sums = std::move(sums);
  return vote;
}

inline ModelReport MakeReport(std::vector<int> attached_ranks, int64_t commit_number = 0, int64_t version = 0,
                              uint64_t fingerprint = 1, int shard_size = 3) {
  ModelReport report;
  report.model = "m";
  report.spec_fingerprint = fingerprint;
  report.commit_number = commit_number;
  report.version = version;
  report.shard_size = shard_size;
  report.attached_ranks = std::move(attached_ranks);
  return report;
}

inline Healing GivesUp(int receiver, int donor, std::string history, int64_t commit_number) {
  return {.receiver = receiver,
          .donor = donor,
          .gives_up = Healing::GivenUp{.history_id = std::move(history), .commit_number = commit_number}};
}

inline std::vector<int> AbsentNodes(Coordinator& coordinator) {
  std::vector<int> nodes;
  for (const AbsentNode& absent : coordinator.ViewWorld().absent) nodes.push_back(absent.node);
  return nodes;
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_WORLD_RECORDING_LISTENER_H_
