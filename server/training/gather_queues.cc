#include "server/training/gather_queues.h"

#include <utility>

namespace paramshard::server {

GatherQueues::GatherQueues(int ranks, bool target_serves_alone)
    : servers_(target_serves_alone ? 1 : ranks), queues_(ranks) {
  for (Queue& queue : queues_) queue.begun = queue.finished = std::vector<int64_t>(ranks, 0);
}

void GatherQueues::Append(int target, QueuedGather gather) {
  queues_[target].bytes += gather.bytes;
  queues_[target].gathers.push_back(std::move(gather));
}

const QueuedGather* GatherQueues::Next(int server, int target) const {
  const Queue& queue = queues_[target];
  const int64_t next = queue.begun[server] - queue.first;
  return next < static_cast<int64_t>(queue.gathers.size()) ? &queue.gathers[next] : nullptr;
}

const v1::Command& GatherQueues::Begin(int server, int target, SteadyTime now) {
  Queue& queue = queues_[target];
  if (server == target) queue.changed_at = now;
  return queue.gathers[queue.begun[server]++ - queue.first].command;
}

bool GatherQueues::Finish(int server, int target, SteadyTime now) {
  Queue& queue = queues_[target];
  if (++queue.gathers[queue.finished[server]++ - queue.first].served < servers_) return false;
  // Servers finish in order: the first gather is done before later ones.
  queue.bytes -= queue.gathers.front().bytes;
  queue.gathers.pop_front();
  ++queue.first;
  queue.changed_at = now;
  return true;
}

bool GatherQueues::IsBusy(int server) const {
  for (const Queue& queue : queues_) {
    if (queue.begun[server] > queue.finished[server]) return true;
  }
  return false;
}

bool GatherQueues::IsBusy() const {
  for (int server = 0; server < static_cast<int>(queues_.size()); ++server) {
    if (IsBusy(server)) return true;
  }
  return false;
}

}  // namespace paramshard::server
