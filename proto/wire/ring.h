// The ring of commands in a session's words page: one writer (the trainer), one reader (the daemon).
//
// A record is a 32-bit length and that many bytes: a serialized paramshard.v1.Command. Positions count bytes and wrap
// at 2^32; a record may wrap around the end of the ring.
#ifndef PARAMSHARD_PROTO_WIRE_RING_H_
#define PARAMSHARD_PROTO_WIRE_RING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/words.h"

namespace paramshard::wire {

// Largest record: client state, hyper-parameters of all groups, and framing.
inline constexpr uint32_t kMaxRecordBytes = 160 * 1024;

class RingWriter {
 public:
  explicit RingWriter(const Words& words) : words_(words) {}

  // Appends a record and rings the doorbell; false when the ring has no room yet. Requires
  // record.size() <= kMaxRecordBytes.
  bool TryWrite(absl::string_view record);

 private:
  Words words_;
};

class RingReader {
 public:
  explicit RingReader(const Words& words) : words_(words) {}

  // Takes the oldest record, nullopt when there is none. INVALID_ARGUMENT when the trainer's positions make no sense:
  // the ring cannot be read any further. The memory is the trainer's: what is returned was copied first.
  absl::StatusOr<std::optional<std::string>> Read();

 private:
  Words words_;
  // The reader's position is kept here: the copy in the page is for the writer alone.
  uint32_t tail_ = 0;
};

}  // namespace paramshard::wire

#endif  // PARAMSHARD_PROTO_WIRE_RING_H_
