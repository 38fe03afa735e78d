// Spans made from a recorder's events: what each rank did, from when to when, and which rank held it up.
#ifndef PARAMSHARD_SERVER_OBSERVE_TRACE_H_
#define PARAMSHARD_SERVER_OBSERVE_TRACE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/observe/recorder.h"

namespace paramshard::server {

// A wait of a model's step, or of another change of its planes, for readers.
struct ReaderWait {
  int64_t begin_ns = 0;
  std::optional<int64_t> end_ns = {};     // none: it has not ended
  std::vector<std::string> readers = {};  // those that were waited for when it began
};

struct Span {
  EventKind kind = EventKind::kCommand;
  int rank = 0;  // of the world
  int64_t begin_ns = 0;
  std::optional<int64_t> end_ns = {};  // none: it has not ended
  int64_t command = 0;
  int64_t commit_number = 0;  // of the step that it belongs to
  int unit = -1;
  int64_t bytes = 0;
  // For a wait, or for a commit that other ranks had yet to send: the rank of the world that came last. For a commit that
  // some ranks have not sent: one of these.
  std::optional<int> waits_for = {};
  std::vector<std::string> readers = {};  // of a hold
};

struct Trace {
  int64_t epoch = 0;
  std::vector<Span> spans;  // by their begin
  bool truncated = false;   // earlier events of the steps that were asked for are gone, or there are too many
};

// Returns the last `steps` steps, including one that is under way; `most` spans at most, the last ones.
//
// Every rank counts its own commands. A commit lasts from when the rank has sent it until all ranks of the daemon have;
// other commands are instants. A vote and an answer are the
// daemon's, and stand at each of its ranks; so does a hold, a part of an apply that was one of `waits`.
Trace MakeTrace(const Recorder& recorder, int64_t steps, size_t most, absl::Span<const ReaderWait> waits = {});

// Returns one text for each rank: its last command, what it was doing and which rank it waited for.
std::vector<std::string> LastWords(const Recorder& recorder, int64_t now_ns);

// Reads the clock of events: monotonic, of this process's machine.
inline int64_t TraceNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// "gather", "push", ...
const char* EventName(EventKind kind);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_TRACE_H_
