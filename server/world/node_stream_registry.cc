#include "server/world/node_stream_registry.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/observe/log.h"

namespace paramshard::server {

NodeStreamRegistry::StreamPtr NodeStreamRegistry::FindBefore(const Stream& stream) {
  const auto found = streams_.find(stream.node);
  if (found == streams_.end() || stream.incarnation == 0) return nullptr;
  const Stream& before = *found->second;
  const bool is_before = before.incarnation == stream.incarnation && before.connection < stream.connection;
  return is_before ? found->second : nullptr;
}

bool NodeStreamRegistry::AwaitEnd(const Stream& stream) {
  const SteadyTime deadline = SteadyDeadline(options_.end_timeout);
  while (!stream.is_over && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return stream.is_over;
}

absl::Status NodeStreamRegistry::Join(const StreamPtr& stream, int device_count) {
  absl::MutexLock lock(&mu_);
  if (const StreamPtr before = FindBefore(*stream); before != nullptr) {
    before->sink->OnStop();
    AwaitEnd(*before);
  }
  RETURN_IF_ERROR(TakePlace(*stream));
  RETURN_IF_ERROR(coordinator_->Join(stream->node, device_count, stream->sink));
  streams_[stream->node] = stream;
  return absl::OkStatus();
}

absl::Status NodeStreamRegistry::TakePlace(const Stream& stream) {
  for (auto found = streams_.find(stream.node); found != streams_.end(); found = streams_.find(stream.node)) {
    const StreamPtr other = found->second;
    const auto displaced = displaced_.find(stream.node);
    const bool gave_way = displaced != displaced_.end() && displaced->second == stream.incarnation;
    if (gave_way || Answers(*other)) {
      return absl::AlreadyExistsError(absl::StrCat("join node ", stream.node, ": a live daemon has this node number, ",
                                                   other->peer, "; give each daemon a --node of its own"));
    }
    // If the process has moved to another stream meanwhile, the probe goes there.
    if (other->is_over) continue;
    Log(LogLevel::kWarning, "replaced a daemon that does not answer",
        {{"node", absl::StrCat(stream.node)}, {"peer", other->peer}, {"by", stream.peer}});
    displaced_[stream.node] = other->incarnation;
    other->sink->OnStop();
    AwaitEnd(*other);
    break;
  }
  return absl::OkStatus();
}

bool NodeStreamRegistry::Answers(const Stream& stream) {
  const int64_t answers = stream.answers;
  const SteadyTime deadline = SteadyDeadline(options_.probe_timeout);
  stream.sink->Tell(Probe());
  while (!stream.is_over && stream.answers == answers && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return !stream.is_over && stream.answers > answers;
}

void NodeStreamRegistry::TakeProbeAnswer(Stream& stream) {
  absl::MutexLock lock(&mu_);
  ++stream.answers;
  changed_.SignalAll();
}

absl::Status NodeStreamRegistry::Resume(const StreamPtr& stream) {
  absl::MutexLock lock(&mu_);
  const StreamPtr before = FindBefore(*stream);
  if (before == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("join node ", stream->node, ": connection ", stream->connection,
                                                      " continues a connection that does not exist; join "
                                                      "again"));
  }
  RETURN_IF_ERROR(coordinator_->Move(stream->node, stream->connection, stream->sink));
  streams_[stream->node] = stream;
  if (!AwaitEnd(*before)) before->sink->OnStop();
  if (before->is_moved) return absl::OkStatus();
  EndLocked(*stream);
  return absl::UnavailableError(absl::StrCat("join node ", stream->node, ": connection ", before->connection,
                                             " broke before it was read completely; join again"));
}

bool NodeStreamRegistry::End(Stream& stream, bool is_moved) {
  absl::MutexLock lock(&mu_);
  stream.is_moved = is_moved;
  return EndLocked(stream);
}

bool NodeStreamRegistry::EndLocked(Stream& stream) {
  stream.is_over = true;
  changed_.SignalAll();
  const auto found = streams_.find(stream.node);
  if (found == streams_.end() || found->second.get() != &stream) return false;
  coordinator_->Leave(stream.node);
  streams_.erase(found);
  return true;
}

}  // namespace paramshard::server
