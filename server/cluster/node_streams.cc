#include "server/cluster/node_streams.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

NodeStreams::StreamPtr NodeStreams::FindBefore(const Stream& stream) {
  const auto found = streams_.find(stream.node);
  if (found == streams_.end() || stream.incarnation == 0) return nullptr;
  const Stream& before = *found->second;
  const bool is_before = before.incarnation == stream.incarnation && before.connection < stream.connection;
  return is_before ? found->second : nullptr;
}

bool NodeStreams::AwaitEnd(const Stream& stream) {
  const SteadyTime deadline = SteadyDeadline(options_.end_timeout);
  while (!stream.is_over && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return stream.is_over;
}

absl::Status NodeStreams::Join(const StreamPtr& stream, int device_count) {
  absl::MutexLock lock(&mu_);
  if (const StreamPtr before = FindBefore(*stream); before != nullptr) {
    before->sink->OnStop();
    AwaitEnd(*before);
  }
  RETURN_IF_ERROR(coordinator_->Join(stream->node, device_count, stream->sink));
  streams_[stream->node] = stream;
  return absl::OkStatus();
}

absl::Status NodeStreams::GoOn(const StreamPtr& stream) {
  absl::MutexLock lock(&mu_);
  const StreamPtr before = FindBefore(*stream);
  if (before == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("join node ", stream->node, ": connection ", stream->connection,
                                                      " is to go on where another one of the same process ends, and "
                                                      "there is none: join anew"));
  }
  RETURN_IF_ERROR(coordinator_->Move(stream->node, stream->connection, stream->sink));
  streams_[stream->node] = stream;
  if (!AwaitEnd(*before)) before->sink->OnStop();
  if (before->is_moved) return absl::OkStatus();
  EndLocked(*stream);
  return absl::UnavailableError(absl::StrCat("join node ", stream->node, ": connection ", before->connection,
                                             " has broken before everything on it was read: join anew"));
}

void NodeStreams::End(Stream& stream, bool is_moved) {
  absl::MutexLock lock(&mu_);
  stream.is_moved = is_moved;
  EndLocked(stream);
}

void NodeStreams::EndLocked(Stream& stream) {
  stream.is_over = true;
  changed_.SignalAll();
  const auto found = streams_.find(stream.node);
  if (found == streams_.end() || found->second.get() != &stream) return;
  coordinator_->Leave(stream.node);
  streams_.erase(found);
}

}  // namespace paramshard::server
