// Gathers of an epoch's ranks that are not finished, and how far each rank has served them.
#ifndef PARAMSHARD_SERVER_TRAINING_GATHER_QUEUES_H_
#define PARAMSHARD_SERVER_TRAINING_GATHER_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"

namespace paramshard::server {

struct QueuedGather {
  v1::Command command;
  int64_t commits_before = 0;  // that its rank has sent
  int64_t slot_user = 0;       // number of the gather that used the slot before; 0: none
  SteadyTime arrived_at;
  size_t bytes = 0;  // of the command, as it was sent
  int served = 0;    // ranks that have finished their part
};

// The gathers of each rank (the target) are in order. Servers are the ranks that move pieces for it: all, or the target
// alone where an engine moves the pieces of all ranks in one call. Not thread-safe.
class GatherQueues {
 public:
  GatherQueues(int ranks, bool target_serves_alone);

  void Append(int target, QueuedGather gather);
  // Returns the next gather of the target that the server has not begun; null without one.
  const QueuedGather* Next(int server, int target) const;
  const v1::Command& Begin(int server, int target, SteadyTime now);
  // Ends the oldest gather of the target that the server has begun. Returns true if all servers have.
  bool Finish(int server, int target, SteadyTime now);

  // Returns true if the target's gather `number`, or every gather before it, is finished.
  bool IsFinished(int target, int64_t number) const { return IsNoneBefore(target, number + 1); }
  bool IsNoneBefore(int target, int64_t number) const {
    const std::deque<QueuedGather>& gathers = queues_[target].gathers;
    return gathers.empty() || gathers.front().command.number() >= number;
  }
  // Returns the number of the target's gathers that are not finished.
  int unfinished(int target) const { return static_cast<int>(queues_[target].gathers.size()); }
  size_t bytes(int target) const { return queues_[target].bytes; }
  // Returns true if the server works on a gather of any rank, or any server does.
  bool IsBusy(int server) const;
  bool IsBusy() const;
  // Returns when the target's queue has last changed, but for appended gathers.
  SteadyTime changed_at(int target) const { return queues_[target].changed_at; }

 private:
  struct Queue {
    std::deque<QueuedGather> gathers;
    int64_t first = 0;  // index of the first one
    size_t bytes = 0;
    std::vector<int64_t> begun, finished;  // by server: how many
    SteadyTime changed_at;
  };

  const int servers_;
  std::vector<Queue> queues_;  // by target
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_GATHER_QUEUES_H_
