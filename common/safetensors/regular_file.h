// Reader of files that are not trusted: of any origin, size and kind.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_REGULAR_FILE_H_
#define PARAMSHARD_COMMON_SAFETENSORS_REGULAR_FILE_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/safetensors/page_buffer.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::safetensors {

// Returns the status for an errno of a call on a file; UNAVAILABLE if a disk or a mount does not answer now.
absl::Status FileError(int error, absl::string_view what);

// An open regular file. Devices and pipes, which may have no end, are refused without waiting for them. Data is read on
// demand, not mapped: a file that is truncated meanwhile is an error, not a signal. Movable; several threads may read.
class RegularFile {
 public:
  enum class PageCache : uint8_t {
    kUsed,
    // Reads go around it if the file system allows that. With several threads that read large pieces they reach the
    // disk's full speed, and data that is read once takes no memory. A single thread is slower: there is no read-ahead.
    kAvoided,
  };
  // NOT_FOUND and other errors of the file system; INVALID_ARGUMENT for anything but a regular file. All name the file.
  static absl::StatusOr<RegularFile> Open(const std::string& path, PageCache page_cache = PageCache::kUsed);

  // Size when the file was opened.
  int64_t size_bytes() const { return status_.st_size; }
  // PERMISSION_DENIED unless the file belongs to `owner` or to root, and no other user may write to it. Checks the open
  // file, so replacing it under its name has no effect.
  absl::Status CheckOwner(uid_t owner) const;

  // PERMISSION_DENIED unless the file belongs to `user`, and no other user may read or write it; or it belongs to root,
  // and only a group may read it besides, as with a mounted secret.
  absl::Status CheckIsSecret(uid_t user) const;

  // Fills `out` from `offset_bytes` on. DATA_LOSS at the end of the file, UNAVAILABLE if it cannot be read. Errors do
  // not name the file; the caller adds it.
  absl::Status ReadAt(int64_t offset_bytes, absl::Span<uint8_t> out) const;
  // Reads into memory of `buffer` without a copy: reads whole pages, and returns the part that was asked for.
  absl::StatusOr<absl::Span<const uint8_t>> ReadAt(int64_t offset_bytes, int64_t size_bytes, PageBuffer& buffer) const;
  // Reads the whole file. INVALID_ARGUMENT for more than `max_bytes`.
  absl::StatusOr<std::string> ReadWhole(int64_t max_bytes) const;

 private:
  RegularFile(wire::FileDescriptor fd, const struct stat& status, bool is_direct)
      : fd_(std::move(fd)), status_(status), is_direct_(is_direct) {}
  absl::Status Read(int64_t offset_bytes, int64_t needed_bytes, absl::Span<uint8_t> out) const;

  wire::FileDescriptor fd_;
  struct stat status_;
  bool is_direct_;  // opened with O_DIRECT: reads whole pages
};

// RegularFile::CheckOwner for a file or folder with this status.
absl::Status CheckOwnerOf(const struct stat& status, uid_t owner);

// Reads a whole file. Errors of RegularFile, all with the file's name; INVALID_ARGUMENT for more than `max_bytes`.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);
// Reads a whole key file. Errors of ReadWholeFile and RegularFile::CheckIsSecret.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, int64_t max_bytes);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_REGULAR_FILE_H_
