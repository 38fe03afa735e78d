#include "common/safetensors/replacing_file.h"

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

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Makes a rename durable: it is on the disk once its folder is.
absl::Status SyncFolder(const std::string& path) {
  const wire::FileDescriptor fd(open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0 && fsync(fd.get()) == 0) return absl::OkStatus();
  return Failed(path, "fsync of its folder");
}

}  // namespace

ReplacingFile::ReplacingFile(const std::string& path)
    : path_(path), temporary_path_(absl::StrCat(path, ".", getpid(), ".partial")) {}

absl::StatusOr<ReplacingFile> ReplacingFile::Create(const std::string& path) {
  ReplacingFile file(path);
  file.fd_ = wire::FileDescriptor(open(FolderOf(path).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666));
  if (file.fd_.get() >= 0) return file;
  // Kernels that do not know O_TMPFILE open the folder itself, and fail with EISDIR.
  if (errno != EOPNOTSUPP && errno != EISDIR) return Failed(path, "create");
  if (absl::Status status = file.CreateTemporary(); !status.ok()) return status;
  return file;
}

absl::Status ReplacingFile::CreateTemporary() {
  fd_ = wire::FileDescriptor(open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd_.get() < 0) return Failed(temporary_path_, "create");
  has_temporary_path_ = true;
  return absl::OkStatus();
}

absl::Status ReplacingFile::LinkTemporary() {
  const std::string open_file = absl::StrCat("/proc/self/fd/", fd_.get());
  if (linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, temporary_path_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return Failed(temporary_path_, "link");
  }
  has_temporary_path_ = true;
  return absl::OkStatus();
}

ReplacingFile::ReplacingFile(ReplacingFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::move(other.temporary_path_)),
      has_temporary_path_(std::exchange(other.has_temporary_path_, false)),
      fd_(std::move(other.fd_)) {}

ReplacingFile::~ReplacingFile() {
  if (has_temporary_path_) unlink(temporary_path_.c_str());
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

// A link cannot replace an existing file, but a rename can.
absl::Status ReplacingFile::Commit() {
  if (fsync(fd_.get()) != 0) return Failed(path_, "fsync");
  if (!has_temporary_path_) {
    if (absl::Status status = LinkTemporary(); !status.ok()) return status;
  }
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) return Failed(path_, "rename");
  has_temporary_path_ = false;
  return SyncFolder(path_);
}

}  // namespace paramshard::safetensors
