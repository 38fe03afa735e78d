// Which stream is each node's: the end of an old one ejects nobody who has another one by now.
#ifndef PARAMSHARD_SERVER_CLUSTER_NODE_STREAMS_H_
#define PARAMSHARD_SERVER_CLUSTER_NODE_STREAMS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"
#include "server/cluster/coordinator.h"

namespace paramshard::server {

// The streams of nodes at node 0, each read by a thread of its own. A process of a node has one stream after the other,
// on connections that it numbers: a new one goes on where the one before ends, or takes the place of one that the
// process has given up. Another process takes the place of one that does not answer. Thread-safe.
//
//   auto stream = std::make_shared<NodeStreams::Stream>(hello, &sink);
//   RETURN_IF_ERROR(hello.goes_on() ? streams.GoOn(stream) : streams.Join(stream, devices));
//   ... read, until the end or `moved` ...
//   streams.End(*stream, is_moved);
class NodeStreams {
 public:
  struct Options {
    // How long a stream may take to end that its process leaves.
    absl::Duration end_timeout = absl::Seconds(10);
    // How long a process may take to answer whose node number another one wants.
    absl::Duration probe_timeout = absl::Seconds(2);
  };

  struct Stream {
    int node = 0;
    absl::uint128 incarnation = 0;  // of the process; 0: it says none
    int64_t connection = 0;
    std::string peer = {};     // where the process is, in words
    NodeSink* sink = nullptr;  // until End has returned
    // Guarded by the lock of NodeStreams.
    bool is_over = false;
    bool is_moved = false;  // everything on it was read
    int64_t answers = 0;    // to probes
  };
  using StreamPtr = std::shared_ptr<Stream>;

  // `coordinator` outlives it.
  NodeStreams(Coordinator* coordinator, Options options) : coordinator_(coordinator), options_(options) {}
  explicit NodeStreams(Coordinator* coordinator) : NodeStreams(coordinator, Options()) {}

  // The node joins. A stream of the same process that was before ends first, and with it the node's epochs; and one of
  // another process that does not answer a probe. As Coordinator::Join; ALREADY_EXISTS names the one that answers.
  absl::Status Join(const StreamPtr& stream, int device_count);
  // The node's news come on this stream from now on, and epochs go on. Returns when everything is read that was said on
  // the stream before. FAILED_PRECONDITION there is none of that process; UNAVAILABLE stopped, or it has broken: then the
  // node is lost.
  absl::Status GoOn(const StreamPtr& stream);
  // The process has answered a probe on its stream.
  void TakeProbeAnswer(Stream& stream);
  // Nothing more is read. The node is lost, unless it goes on with another stream: returns whether it is. Once for every
  // stream that Join or GoOn have accepted.
  bool End(Stream& stream, bool is_moved);

 private:
  // Null where there is none, or it is that of another process or a later connection.
  StreamPtr FindBefore(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // OK when the node has no stream of another process any more.
  absl::Status TakePlace(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks the process of the stream, and waits. Whether it is there.
  bool Answers(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the stream is over.
  bool AwaitEnd(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool EndLocked(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Coordinator* const coordinator_;
  const Options options_;
  absl::Mutex mu_;  // taken before the coordinator's
  SteadyCondVar changed_;
  std::map<int, StreamPtr> streams_ ABSL_GUARDED_BY(mu_);  // by node: those on which it hears its news
  // By node: the last process that gave way to another one. It does not take the place back when that one is slow.
  std::map<int, absl::uint128> displaced_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_NODE_STREAMS_H_
