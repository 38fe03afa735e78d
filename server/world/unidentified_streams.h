// Streams of daemons that have not sent a hello yet: each holds a thread, and may never send one.
#ifndef PARAMSHARD_SERVER_WORLD_UNIDENTIFIED_STREAMS_H_
#define PARAMSHARD_SERVER_WORLD_UNIDENTIFIED_STREAMS_H_

#include <cstddef>
#include <functional>
#include <list>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// Limits such streams per caller. The oldest one gives way when its timeout is over. Thread-safe.
class UnidentifiedStreams {
 public:
  struct Options {
    size_t most = 4;                             // of one caller
    absl::Duration timeout = absl::Seconds(10);  // after which a stream gives way to another one
  };
  UnidentifiedStreams() : UnidentifiedStreams(Options()) {}
  explicit UnidentifiedStreams(Options options) : options_(options) {}

  // Scope of a stream.
  class Place;
  // `end` ends the stream, and returns at once. RESOURCE_EXHAUSTED the caller has as many, and none gives way yet.
  absl::StatusOr<Place> Take(absl::string_view caller, std::function<void()> end);

 private:
  struct Stream {
    std::string caller;
    std::function<void()> end;
    SteadyTime gives_way;
  };
  using Streams = std::list<Stream>;

  const Options options_;
  absl::Mutex mu_;
  Streams streams_ ABSL_GUARDED_BY(mu_);  // oldest first
};

class UnidentifiedStreams::Place {
 public:
  Place(UnidentifiedStreams* streams, Streams::iterator stream) : streams_(streams), stream_(stream) {}
  Place(Place&& other) noexcept : streams_(other.streams_), stream_(other.stream_) { other.streams_ = nullptr; }
  Place& operator=(Place&&) = delete;
  ~Place() {
    if (streams_ == nullptr) return;
    absl::MutexLock lock(&streams_->mu_);
    streams_->streams_.erase(stream_);
  }

 private:
  UnidentifiedStreams* streams_;
  Streams::iterator stream_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_UNIDENTIFIED_STREAMS_H_
