#include "server/base/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/safetensors/page_buffer.h"
#include "kernels/base/same_file.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// A restore refuses files that others may write to, so the umask must not matter.
constexpr mode_t kFileMode = 0640;
constexpr mode_t kFolderMode = 0750;

absl::Status Failed(const std::string& path, absl::string_view call) {
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", call, " failed"));
  if (!absl::IsUnknown(status)) return status;
  return absl::UnavailableError(status.message());
}

// Makes a call until no signal interrupts it.
template <typename Call>
auto Repeat(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

std::string PathIn(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace

Disk::Descriptor& Disk::Descriptor::operator=(Descriptor&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  calls_ = other.calls_;
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

// Ignores errors of close: bytes that must be on the disk were synced before.
void Disk::Descriptor::Reset() {
  if (fd_ >= 0) calls_->Close(std::exchange(fd_, -1));
}

absl::Status Disk::File::Reserve(int64_t size_bytes) {
  if (size_bytes == 0) return absl::OkStatus();
  if (Repeat([&] { return calls_->Fallocate(fd_.get(), size_bytes); }) == 0) return absl::OkStatus();
  // Without fallocate the writes will fail on a full disk.
  if (errno == EOPNOTSUPP || errno == ENOSYS) return absl::OkStatus();
  return Failed(path_, "fallocate");
}

absl::Status Disk::File::WriteAt(int64_t offset_bytes, absl::Span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = Repeat([&] { return WriteSome(offset_bytes, bytes); });
    if (count < 0) return Failed(path_, "write");
    if (count == 0) return absl::UnavailableError(absl::StrCat(path_, ": write failed: nothing was written"));
    bytes.remove_prefix(count);
    offset_bytes += count;
  }
  return absl::OkStatus();
}

ssize_t Disk::File::WriteSome(int64_t offset_bytes, absl::Span<const uint8_t> bytes) {
  const size_t direct_bytes = DirectBytes(offset_bytes, bytes);
  may_be_direct_ = SetDirect(direct_bytes > 0) && may_be_direct_;
  const size_t size_bytes = is_direct_ ? direct_bytes : bytes.size();
  const ssize_t count = calls_->Pwrite(fd_.get(), bytes.data(), size_bytes, offset_bytes);
  if (count >= 0 || errno != EINVAL || !is_direct_) return count;
  // The file system has larger pages.
  may_be_direct_ = false;
  return WriteSome(offset_bytes, bytes);
}

size_t Disk::File::DirectBytes(int64_t offset_bytes, absl::Span<const uint8_t> bytes) const {
  constexpr size_t kPage = safetensors::kPageBytes;
  const bool at_pages = offset_bytes % kPage == 0 && reinterpret_cast<uintptr_t>(bytes.data()) % kPage == 0;
  return may_be_direct_ && at_pages ? bytes.size() / kPage * kPage : 0;
}

bool Disk::File::SetDirect(bool direct) {
  if (is_direct_ != direct && calls_->SetDirect(fd_.get(), direct) == 0) is_direct_ = direct;
  return is_direct_ == direct;
}

absl::Status Disk::File::Flush() {
  if (calls_->Fdatasync(fd_.get()) != 0) return Failed(path_, "fdatasync");
  return absl::OkStatus();
}

absl::Status Disk::File::Sync() {
  if (calls_->Fsync(fd_.get()) != 0) return Failed(path_, "fsync");
  fd_.Reset();
  return absl::OkStatus();
}

absl::StatusOr<Disk::Descriptor> Disk::Open(const std::string& path, int flags, mode_t mode,
                                            absl::string_view operation) const {
  const int fd = Repeat([&] { return calls_->Open(path, flags | O_CLOEXEC | O_NOCTTY, mode); });
  if (fd < 0) return Failed(path, operation);
  return Descriptor(calls_, fd);
}

absl::StatusOr<Disk::File> Disk::Create(const std::string& path) const {
  ASSIGN_OR_RETURN(Descriptor fd, Open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, kFileMode, "create"));
  return File(calls_, path, std::move(fd));
}

absl::StatusOr<Disk::File> Disk::Reopen(const std::string& path) const {
  ASSIGN_OR_RETURN(Descriptor fd, Open(path, O_WRONLY | O_NOFOLLOW, 0, "open"));
  return File(calls_, path, std::move(fd));
}

absl::Status Disk::WriteFile(const std::string& path, absl::string_view bytes) const {
  ASSIGN_OR_RETURN(File file, Create(path));
  RETURN_IF_ERROR(file.WriteAt(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size())));
  return file.Sync();
}

absl::Status Disk::MakeFolder(const std::string& path) const {
  if (Repeat([&] { return calls_->Mkdir(path, kFolderMode); }) == 0) return absl::OkStatus();
  return Failed(path, "mkdir");
}

absl::Status Disk::SyncFolder(const std::string& path) const {
  ASSIGN_OR_RETURN(const Descriptor fd, Open(path, O_RDONLY | O_DIRECTORY, 0, "open"));
  if (calls_->Fsync(fd.get()) == 0) return absl::OkStatus();
  return Failed(path, "fsync of the folder");
}

absl::Status Disk::Rename(const std::string& from, const std::string& to) const {
  if (calls_->Rename(from, to) == 0) return absl::OkStatus();
  return Failed(from, absl::StrCat("rename to ", std::filesystem::path(to).filename().string()));
}

absl::Status Disk::RemoveFile(const std::string& path) const {
  if (calls_->Unlink(path) == 0) return absl::OkStatus();
  return Failed(path, "unlink");
}

absl::Status Disk::RemoveFolder(const std::string& path) const {
  std::vector<std::string> names;
  if (calls_->List(path, &names) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    if (errno != ENOTDIR && errno != ELOOP) return Failed(path, "list");
    return RemoveFile(path);
  }
  absl::Status first;
  for (const std::string& name : names) {
    const absl::Status status = RemoveFile(PathIn(path, name));
    if (!absl::IsNotFound(status)) first.Update(status);
  }
  // Tried after errors, too: it fails because the folder is not empty, and the first error says why.
  if (calls_->Rmdir(path) != 0 && errno != ENOENT) first.Update(Failed(path, "rmdir"));
  return first;
}

absl::StatusOr<Disk::Entry> Disk::Look(const std::string& path) const {
  struct stat status;
  if (calls_->Stat(path, &status) != 0) return Failed(path, "stat");
  return Entry{.is_folder = S_ISDIR(status.st_mode), .owner = status.st_uid, .mode = status.st_mode};
}

absl::StatusOr<bool> Disk::Exists(const std::string& path) const {
  struct stat status;
  if (calls_->Lstat(path, &status) == 0) return true;
  if (errno == ENOENT) return false;
  return Failed(path, "stat");
}

absl::Status Disk::CheckWritable(const std::string& folder) const {
  if (calls_->Access(folder, W_OK | X_OK) == 0) return absl::OkStatus();
  return Failed(folder, "access for writing");
}

absl::StatusOr<int64_t> Disk::FreeBytes(const std::string& path) const {
  const int64_t free_bytes = calls_->FreeBytes(path);
  if (free_bytes >= 0) return free_bytes;
  return Failed(path, "statvfs");
}

absl::StatusOr<Disk::Descriptor> Disk::Lock(const std::string& path, int lent) const {
  ASSIGN_OR_RETURN(Descriptor fd, Open(path, O_RDWR | O_CREAT | O_NOFOLLOW, kFileMode, "open"));
  if (lent >= 0 && AreSameFile(lent, fd.get())) {
    // A duplicate of `lent` shares the other process's lock; `fd` does not.
    Descriptor held(calls_, fcntl(lent, F_DUPFD_CLOEXEC, 0));
    if (held.get() < 0) return Failed(path, "dup");
    return held;
  }
  if (Repeat([&] { return calls_->Flock(fd.get(), LOCK_EX | LOCK_NB); }) == 0) return fd;
  switch (errno) {
    case EWOULDBLOCK:
      return absl::FailedPreconditionError(absl::StrCat(path, ": locked (flock) by another daemon that saves here"));
    case EBADF:
    case EINVAL:
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      return absl::FailedPreconditionError(absl::StrCat(
          Failed(path, "flock").message(), ": want a file system with locks, so that no second daemon saves here"));
    default:
      return Failed(path, "flock");
  }
}

}  // namespace paramshard::server
