// The ring of commands in a session's words page: one writer (the trainer), one reader (the daemon).
//
// A record is a 32-bit length and that many bytes: a serialized paramshard.v1.Command. Positions count bytes and wrap
// at 2^32; a record may wrap around the end of the ring.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_RING_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_RING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/shared_memory/words.h"

namespace paramshard::wire {

// Largest record: client state, hyper-parameters of all groups, and framing.
inline constexpr uint32_t kMaxRecordBytes = 160 * 1024;

class RingWriter {
 public:
  explicit RingWriter(const Words& words) : words_(words) {}

  // Appends a record and rings the doorbell; returns false if the ring has no room yet. Requires
  // record.size() <= kMaxRecordBytes.
  bool TryWrite(absl::string_view record);

 private:
  Words words_;
};

class RingReader {
 public:
  explicit RingReader(const Words& words) : words_(words) {}

  // Takes the oldest record; nullopt if there is none. INVALID_ARGUMENT if the trainer's positions are invalid: the
  // ring cannot be read any further. The trainer can write the memory at any time, so the record is a copy.
  absl::StatusOr<std::optional<std::string>> Read();

 private:
  Words words_;
  // The reader's position. The copy in the page is only for the writer: the trainer can change it.
  uint32_t tail_ = 0;
};

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_RING_H_
