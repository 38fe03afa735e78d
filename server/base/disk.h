// Durable files and folders of saves.
#ifndef PARAMSHARD_SERVER_BASE_DISK_H_
#define PARAMSHARD_SERVER_BASE_DISK_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/base/disk_calls.h"

namespace paramshard::server {

// A view of system calls, which outlive it and all that it makes; cheap to copy, thread-safe. Calls that a signal
// interrupts are made again and short writes go on, but **an fsync that has failed is never made again**: the kernel
// may have dropped the pages that it could not write, and a second fsync would succeed.
//
// Errors are the file system's and name path and call: "/saves/m/manifest.json: fsync failed: No space left on device".
// RESOURCE_EXHAUSTED a full disk or quota; UNAVAILABLE EIO and errors without a code of their own; NOT_FOUND;
// ALREADY_EXISTS; PERMISSION_DENIED; FAILED_PRECONDITION.
class Disk {
 public:
  explicit Disk(DiskCalls* calls) : calls_(calls) {}

  // A descriptor that is closed through the same calls. Move-only.
  class Descriptor {
   public:
    Descriptor() = default;
    Descriptor(DiskCalls* calls, int fd) : calls_(calls), fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : calls_(other.calls_), fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor() { Reset(); }
    int get() const { return fd_; }
    void Reset();

   private:
    DiskCalls* calls_ = nullptr;
    int fd_ = -1;
  };

  // A file in the making. Move-only; not thread-safe.
  class File {
   public:
    // Reserves the file's space, where the file system can, so that a full disk is noticed before the first write.
    absl::Status Reserve(int64_t size_bytes);
    // Writes whole pages of memory to whole pages of the file around the page cache, where the file system allows it:
    // at the disk's own speed, and without evicting what other processes have cached.
    absl::Status WriteAt(int64_t offset_bytes, absl::Span<const uint8_t> bytes);
    // Puts on the disk what was written so far.
    absl::Status Flush();
    // Puts the file on the disk, and closes it. Its name is durable once its folder is synced. The last call, whatever
    // it returns.
    absl::Status Sync();

   private:
    friend class Disk;
    File(DiskCalls* calls, std::string path, Descriptor fd)
        : calls_(calls), path_(std::move(path)), fd_(std::move(fd)) {}

    // Returns how many of these bytes are written around the page cache: whole pages, or none.
    size_t DirectBytes(int64_t offset_bytes, absl::Span<const uint8_t> bytes) const;
    // Makes one write, of some of the bytes.
    ssize_t WriteSome(int64_t offset_bytes, absl::Span<const uint8_t> bytes);
    // Returns true if the file is in that mode now.
    bool SetDirect(bool direct);

    DiskCalls* calls_;
    std::string path_;
    Descriptor fd_;
    bool is_direct_ = false;
    bool may_be_direct_ = true;  // the file system has not said no
  };

  // Creates a file, written by its owner and, as far as the umask allows it, read by the group. ALREADY_EXISTS.
  absl::StatusOr<File> Create(const std::string& path) const;
  // Opens an existing file to write to it in place.
  absl::StatusOr<File> Reopen(const std::string& path) const;
  // Creates a file, writes and syncs it.
  absl::Status WriteFile(const std::string& path, absl::string_view bytes) const;

  // ALREADY_EXISTS.
  absl::Status MakeFolder(const std::string& path) const;
  absl::Status SyncFolder(const std::string& path) const;
  absl::Status Rename(const std::string& from, const std::string& to) const;
  absl::Status RemoveFile(const std::string& path) const;
  // Removes a folder of files; goes on after an error, and returns the first one. OK if the folder does not exist. A
  // file or link of this name is unlinked; folders within the folder stay, which is an error.
  absl::Status RemoveFolder(const std::string& path) const;

  struct Entry {
    bool is_folder = false;
    uid_t owner = 0;
    mode_t mode = 0;
  };
  // Describes what a path leads to, links followed. NOT_FOUND.
  absl::StatusOr<Entry> Look(const std::string& path) const;
  // Returns true if anything has this name, even a dangling link.
  absl::StatusOr<bool> Exists(const std::string& path) const;
  // PERMISSION_DENIED unless this process may create files in the folder.
  absl::Status CheckWritable(const std::string& folder) const;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) const;

  // Locks a file, which is created if it does not exist and never removed; the lock ends with the descriptor, and so
  // with the process. FAILED_PRECONDITION if another process holds it, and if the file system has no locks.
  // `lent`: a descriptor of another process that may hold the lock for this one; then it is duplicated.
  absl::StatusOr<Descriptor> Lock(const std::string& path, int lent = -1) const;

 private:
  absl::StatusOr<Descriptor> Open(const std::string& path, int flags, mode_t mode, absl::string_view operation) const;

  DiskCalls* calls_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_DISK_H_
