// Reading files that anybody may have written, of any size and kind.
#ifndef PARAMSHARD_PROTO_SAFETENSORS_REGULAR_FILE_H_
#define PARAMSHARD_PROTO_SAFETENSORS_REGULAR_FILE_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/safetensors/page_buffer.h"
#include "proto/wire/handoff.h"

namespace paramshard::safetensors {

// What a call on a file has ended with: as errno says, but UNAVAILABLE from a disk or a mount that does not answer now.
absl::Status FileError(int error, absl::string_view what);

// An open regular file. Devices and pipes, which need have no end, are refused, and opening one does not wait. Data are
// read where they are asked for, not mapped: a file that is cut meanwhile is an error, not a signal. Movable; several
// threads may read.
class RegularFile {
 public:
  enum class PageCache : uint8_t {
    kUsed,
    // Reads go around it where the file system lets them: at the disk's own speed, when several threads read large
    // pieces, and without taking memory for what is read once. One thread alone is slower: nothing is read ahead.
    kAvoided,
  };
  // NOT_FOUND and what else the file system says; INVALID_ARGUMENT for anything but a regular file. Both name it.
  static absl::StatusOr<RegularFile> Open(const std::string& path, PageCache page_cache = PageCache::kUsed);

  // What it had when it was opened.
  int64_t size_bytes() const { return status_.st_size; }
  // PERMISSION_DENIED unless it belongs to this user or to root, and nobody else may write to it. Of the open file, so
  // that another one of its name changes nothing.
  absl::Status CheckOwner(uid_t owner) const;

  // PERMISSION_DENIED unless it belongs to this user, and nobody else may read it or write to it; or to root, and besides
  // a group alone may read it, as a mounted secret's does.
  absl::Status CheckIsSecret(uid_t user) const;

  // Fills `out` from `offset_bytes` on. DATA_LOSS at the end of the file, UNAVAILABLE when it cannot be read. Errors do
  // not name the file: the caller does, who knows what was to be read.
  absl::Status ReadAt(int64_t offset_bytes, absl::Span<uint8_t> out) const;
  // The same, into memory of the buffer, without a copy: whole pages are read, of which these bytes are a part.
  absl::StatusOr<absl::Span<const uint8_t>> ReadAt(int64_t offset_bytes, int64_t size_bytes, PageBuffer& buffer) const;
  // All of it. INVALID_ARGUMENT for more than `max_bytes`.
  absl::StatusOr<std::string> ReadWhole(int64_t max_bytes) const;

 private:
  RegularFile(wire::FileDescriptor fd, const struct stat& status, bool is_direct)
      : fd_(std::move(fd)), status_(status), is_direct_(is_direct) {}
  absl::Status Read(int64_t offset_bytes, int64_t needed_bytes, absl::Span<uint8_t> out) const;

  wire::FileDescriptor fd_;
  struct stat status_;
  bool is_direct_;  // opened so: reads are of whole pages
};

// CheckOwner of whatever has this status.
absl::Status CheckOwnerOf(const struct stat& status, uid_t owner);

// A whole file. Errors of RegularFile, all with the file's name; INVALID_ARGUMENT for one of more than `max_bytes`.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);
// The same of a key. Errors of RegularFile::CheckIsSecret, too.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, int64_t max_bytes);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_PROTO_SAFETENSORS_REGULAR_FILE_H_
