#include "common/safetensors/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace paramshard::safetensors {
namespace {

absl::StatusOr<std::string> Named(const std::string& path, absl::StatusOr<std::string> text) {
  if (text.ok()) return text;
  return absl::Status(text.status().code(), absl::StrCat(path, ": ", text.status().message()));
}

}  // namespace

absl::Status FileError(int error, absl::string_view what) {
  const bool may_pass = error == EIO || error == ESTALE || error == ENOTCONN;
  if (may_pass) return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
  return absl::ErrnoToStatus(error, what);
}

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path, PageCache page_cache) {
  // O_NONBLOCK, because opening a pipe without a writer would wait.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  bool is_direct = page_cache == PageCache::kAvoided;
  wire::FileDescriptor fd(open(path.c_str(), kFlags | (is_direct ? O_DIRECT : 0)));
  if (fd.get() < 0 && errno == EINVAL && is_direct) {
    is_direct = false;  // the file system does not support O_DIRECT
    fd = wire::FileDescriptor(open(path.c_str(), kFlags));
  }
  struct stat status;
  if (fd.get() < 0 || fstat(fd.get(), &status) != 0) {
    return FileError(errno, absl::StrCat(path, ": open failed"));
  }
  if (S_ISREG(status.st_mode)) return RegularFile(std::move(fd), status, is_direct);
  return absl::InvalidArgumentError(absl::StrCat(path, ": want a regular file"));
}

absl::Status RegularFile::CheckOwner(uid_t owner) const { return CheckOwnerOf(status_, owner); }

absl::Status CheckOwnerOf(const struct stat& status, uid_t owner) {
  // Rights of users other than owner and root.
  constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
  if (status.st_uid != owner && status.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("want user ", owner, " or root as the owner, got user ",
                                                    status.st_uid, ": change the owner (chown)"));
  }
  if ((status.st_mode & kOthersWrite) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError("writable by its group or by others; run chmod go-w");
}

absl::Status RegularFile::CheckIsSecret(uid_t user) const {
  if (status_.st_uid != user && status_.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("want a key of user ", user, " or root, got one of user ",
                                                    status_.st_uid, ": change the owner (chown)"));
  }
  // Root gives a key to a service by its group. A key that the user owns needs no group.
  const mode_t others = status_.st_uid == user ? S_IRWXG | S_IRWXO : S_IWGRP | S_IXGRP | S_IRWXO;
  if ((status_.st_mode & others) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      status_.st_uid == user ? "want a key that its owner alone can read: take the others' rights away (chmod go=)"
                             : "want a key that its owner and group alone can read: take the others' rights away "
                               "(chmod g-wx,o=)");
}

absl::Status RegularFile::ReadAt(int64_t offset_bytes, absl::Span<uint8_t> out) const {
  const auto size_bytes = static_cast<int64_t>(out.size());
  if (!is_direct_) return Read(offset_bytes, size_bytes, out);
  PageBuffer buffer;
  const absl::StatusOr<absl::Span<const uint8_t>> bytes = ReadAt(offset_bytes, size_bytes, buffer);
  if (!bytes.ok()) return bytes.status();
  std::copy(bytes->begin(), bytes->end(), out.begin());
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const uint8_t>> RegularFile::ReadAt(int64_t offset_bytes, int64_t size_bytes,
                                                              PageBuffer& buffer) const {
  const int64_t before_bytes = offset_bytes % kPageBytes;
  const absl::Span<uint8_t> pages = buffer.Take(before_bytes + size_bytes);
  if (absl::Status status = Read(offset_bytes - before_bytes, before_bytes + size_bytes, pages); !status.ok()) {
    return status;
  }
  return pages.subspan(before_bytes, size_bytes);
}

// Reads at least `needed_bytes`, and at most what `out` holds.
absl::Status RegularFile::Read(int64_t offset_bytes, int64_t needed_bytes, absl::Span<uint8_t> out) const {
  bool may_end_direct = is_direct_;
  while (needed_bytes > 0) {
    const ssize_t count = pread(fd_.get(), out.data(), out.size(), offset_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL && may_end_direct) {
      // The file system has larger pages, or a read ended within a page. Other threads can read either way.
      may_end_direct = false;
      fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
      continue;
    }
    if (count < 0) return absl::UnavailableError(absl::StrCat("read failed: ", strerror(errno)));
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat("want ", needed_bytes, " bytes at ", offset_bytes, ", got the end of the file"));
    }
    out.remove_prefix(count);
    offset_bytes += count;
    needed_bytes -= count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RegularFile::ReadWhole(int64_t max_bytes) const {
  if (size_bytes() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("want at most ", max_bytes, " bytes, got ", size_bytes()));
  }
  std::string text(size_bytes(), '\0');
  const absl::Status status = ReadAt(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size()));
  if (!status.ok()) return status;
  return text;
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  return Named(path, file->ReadWhole(max_bytes));
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, int64_t max_bytes) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  if (const absl::Status secret = file->CheckIsSecret(geteuid()); !secret.ok()) return Named(path, secret);
  return Named(path, file->ReadWhole(max_bytes));
}

}  // namespace paramshard::safetensors
