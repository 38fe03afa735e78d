#include "proto/safetensors/replacing_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace paramshard::safetensors {
namespace {

absl::Status Failed(const std::string& path, absl::string_view operation) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", operation, " failed"));
}

// A rename is on the disk when its folder is.
absl::Status SyncFolder(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const wire::FileDescriptor fd(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0 && fsync(fd.get()) == 0) return absl::OkStatus();
  return Failed(path, "fsync of its folder");
}

}  // namespace

absl::StatusOr<ReplacingFile> ReplacingFile::Create(const std::string& path) {
  ReplacingFile file;
  file.path_ = path;
  const std::string temporary_path = absl::StrCat(path, ".", getpid(), ".partial");
  file.fd_ = wire::FileDescriptor(open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.fd_.get() < 0) return Failed(temporary_path, "create");
  file.temporary_path_ = temporary_path;
  return file;
}

ReplacingFile::ReplacingFile(ReplacingFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, {})),
      fd_(std::move(other.fd_)) {}

ReplacingFile::~ReplacingFile() {
  if (!temporary_path_.empty()) unlink(temporary_path_.c_str());
}

absl::Status ReplacingFile::WriteAt(int64_t offset, absl::Span<const uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(path_, "write");
    bytes.remove_prefix(count);
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status ReplacingFile::Commit() {
  if (fsync(fd_.get()) != 0) return Failed(path_, "fsync");
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) return Failed(path_, "rename");
  temporary_path_.clear();
  return SyncFolder(path_);
}

}  // namespace paramshard::safetensors
