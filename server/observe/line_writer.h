// Writer of lines to a descriptor that never blocks its callers.
#ifndef PARAMSHARD_SERVER_OBSERVE_LINE_WRITER_H_
#define PARAMSHARD_SERVER_OBSERVE_LINE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::server {

// Thread-safe. A thread writes the lines of a bounded queue. A line that finds the queue full, or that cannot be
// written, is dropped and counted; a line with the count takes the place of the missing lines, or comes before the next
// line that can be written. SIGPIPE must be ignored.
class LineWriter {
 public:
  struct Options {
    int fd = -1;  // stays open for the life of the process
    size_t capacity_bytes = size_t{1} << 20;
    // Returns the line that reports `count` missing lines.
    std::function<std::string(int64_t count)> gap;
  };

  // RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::unique_ptr<LineWriter>> Start(Options options);
  // Does not wait for unwritten lines; Flush does.
  ~LineWriter();

  // Adds a line, given without its newline. Never blocks.
  void Write(absl::string_view line);
  // Waits until every line so far has been written or dropped. Returns false on timeout.
  bool Flush(absl::Duration timeout);

 private:
  class Queue;
  explicit LineWriter(std::shared_ptr<Queue> queue);

  // Shared with the thread, which may be blocked in a write until the process ends.
  const std::shared_ptr<Queue> queue_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_LINE_WRITER_H_
