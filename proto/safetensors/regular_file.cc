#include "proto/safetensors/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace paramshard::safetensors {

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  // O_NONBLOCK, because a pipe of this name may have nobody who writes to it.
  wire::FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status;
  if (fd.get() < 0 || fstat(fd.get(), &status) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open failed"));
  }
  if (S_ISREG(status.st_mode)) return RegularFile(std::move(fd), status.st_size);
  return absl::InvalidArgumentError(absl::StrCat(path, ": a regular file expected"));
}

absl::Status RegularFile::ReadAt(int64_t offset_bytes, absl::Span<uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t count = pread(fd_.get(), out.data(), out.size(), offset_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::UnavailableError(absl::StrCat("read failed: ", strerror(errno)));
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat(out.size(), " bytes at ", offset_bytes, " expected, got the end of the file"));
    }
    out.remove_prefix(count);
    offset_bytes += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  if (file->size_bytes() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": at most ", max_bytes, " bytes expected, got ", file->size_bytes()));
  }
  std::string text(file->size_bytes(), '\0');
  const absl::Status status = file->ReadAt(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size()));
  if (status.ok()) return text;
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace paramshard::safetensors
