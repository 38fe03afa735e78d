// Writes lines to a descriptor, without making anybody wait for whoever reads them.
#ifndef PARAMSHARD_SERVER_LOG_LINE_WRITER_H_
#define PARAMSHARD_SERVER_LOG_LINE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::server {

// Thread-safe. A thread of its own writes what waits in a queue of bounded size. A line that finds the queue full, or
// cannot be written, is dropped and counted; the count stands in a line of its own where the lines are missing, or at
// the next one that can be written. SIGPIPE must be ignored.
class LineWriter {
 public:
  struct Options {
    int fd = -1;  // stays open for as long as the process
    size_t capacity_bytes = size_t{1} << 20;
    // Makes the line that says that `count` lines are missing.
    std::function<std::string(int64_t count)> gap;
  };

  // RESOURCE_EXHAUSTED without a thread.
  static absl::StatusOr<std::unique_ptr<LineWriter>> Start(Options options);
  // Does not wait for lines that are not written yet: Flush does.
  ~LineWriter();

  // `line` is without its end. Never blocks.
  void Write(absl::string_view line);
  // Waits until every line so far has been written or dropped. False when that takes longer.
  bool Flush(absl::Duration timeout);

 private:
  class Queue;
  explicit LineWriter(std::shared_ptr<Queue> queue);

  // Shared with the thread, which may be caught in a write for as long as the process lives.
  const std::shared_ptr<Queue> queue_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LOG_LINE_WRITER_H_
