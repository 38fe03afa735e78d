// Current stream of each node. The end of an older stream does not remove a node that has a newer one.
#ifndef PARAMSHARD_SERVER_WORLD_NODE_STREAM_REGISTRY_H_
#define PARAMSHARD_SERVER_WORLD_NODE_STREAM_REGISTRY_H_

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
#include "server/world/coordinator.h"

namespace paramshard::server {

// The streams of nodes at node 0, each read by a thread of its own. A process of a node has one stream after another,
// on connections that it numbers: a new stream continues the stream before it, or replaces one that the process has
// given up. Another process replaces a process that does not answer. Thread-safe.
//
//   auto stream = std::make_shared<NodeStreamRegistry::Stream>(hello, &sink);
//   RETURN_IF_ERROR(hello.resumes() ? streams.Resume(stream) : streams.Join(stream, devices));
//   ... read, until the end or `moved` ...
//   streams.End(*stream, is_moved);
class NodeStreamRegistry {
 public:
  struct Options {
    // How long a stream may take to end after its process has left it.
    absl::Duration end_timeout = absl::Seconds(10);
    // How long a process may take to answer when another one wants its node number.
    absl::Duration probe_timeout = absl::Seconds(2);
  };

  struct Stream {
    int node = 0;
    absl::uint128 incarnation = 0;  // of the process; 0: not given
    int64_t connection = 0;
    std::string peer = {};     // address of the process, in words
    NodeSink* sink = nullptr;  // until End has returned
    // Guarded by the lock of NodeStreamRegistry.
    bool is_over = false;
    bool is_moved = false;  // all of it was read
    int64_t answers = 0;    // to probes
  };
  using StreamPtr = std::shared_ptr<Stream>;

  // `coordinator` outlives it.
  NodeStreamRegistry(Coordinator* coordinator, Options options) : coordinator_(coordinator), options_(options) {}
  explicit NodeStreamRegistry(Coordinator* coordinator) : NodeStreamRegistry(coordinator, Options()) {}

  // Joins the node. First ends an older stream of the same process, and with it the node's epochs, or the stream of
  // another process that does not answer a probe. Errors of Coordinator::Join; ALREADY_EXISTS names a process that
  // answers.
  absl::Status Join(const StreamPtr& stream, int device_count);
  // Continues the node's previous stream: sends its messages on this one from now on, while epochs go on. Returns when
  // all of the stream before it was read. FAILED_PRECONDITION the process has no such stream; UNAVAILABLE stopped, or
  // the old stream broke: then the node is lost.
  absl::Status Resume(const StreamPtr& stream);
  // Notes that the process has answered a probe on its stream.
  void TakeProbeAnswer(Stream& stream);
  // Ends a stream, of which nothing more is read. Returns true if the node is lost, because no other stream continues
  // it. Called once for every stream that Join or Resume has accepted.
  bool End(Stream& stream, bool is_moved);

 private:
  // Returns the stream before this one; null if there is none, or if it belongs to another process or a later
  // connection.
  StreamPtr FindBefore(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns OK when the node has no stream of another process any more.
  absl::Status TakePlace(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Probes the process of the stream and waits. Returns true if it answers.
  bool Answers(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for the end of the stream. Returns true if it has ended.
  bool AwaitEnd(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool EndLocked(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Coordinator* const coordinator_;
  const Options options_;
  absl::Mutex mu_;  // taken before the coordinator's
  SteadyCondVar changed_;
  std::map<int, StreamPtr> streams_ ABSL_GUARDED_BY(mu_);  // by node: the stream of its messages
  // By node: the last process that was replaced. It cannot take the place back when the new process is slow.
  std::map<int, absl::uint128> displaced_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_NODE_STREAM_REGISTRY_H_
