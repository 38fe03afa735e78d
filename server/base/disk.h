// Files and folders of a save, on the disk when it is said that they are.
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

// A view of system calls, which outlive it and all that it makes; copied freely, thread-safe. Calls that a signal
// interrupts are made again and short writes go on, but **an fsync that has failed is never made again**: the kernel
// may have dropped the pages that it could not write, and a second one would say that all is well.
//
// Errors are the file system's and name path and call: "/saves/m/manifest.json: fsync failed: No space left on device".
// RESOURCE_EXHAUSTED a full disk or quota; UNAVAILABLE EIO and all that has no code of its own; NOT_FOUND;
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
    // Takes the room that the file will need, where the file system can: a full disk is found before it is written to.
    absl::Status Reserve(int64_t size_bytes);
    // Whole pages of memory that go to whole pages of the file go around the page cache, where the file system lets
    // them: at the disk's own speed, and without taking the memory that others read files through.
    absl::Status WriteAt(int64_t offset_bytes, absl::Span<const uint8_t> bytes);
    // Puts what was written on the disk, as often as there is more.
    absl::Status Flush();
    // Puts the file on the disk, and closes it. Its name is there when its folder is synced. Nothing may be called
    // after it, whatever it answers.
    absl::Status Sync();

   private:
    friend class Disk;
    File(DiskCalls* calls, std::string path, Descriptor fd)
        : calls_(calls), path_(std::move(path)), fd_(std::move(fd)) {}

    // How many of these bytes are written around the page cache: whole pages, or nothing.
    size_t DirectBytes(int64_t offset_bytes, absl::Span<const uint8_t> bytes) const;
    // One write, of some of the bytes.
    ssize_t WriteSome(int64_t offset_bytes, absl::Span<const uint8_t> bytes);
    bool SetDirect(bool direct);

    DiskCalls* calls_;
    std::string path_;
    Descriptor fd_;
    bool is_direct_ = false;
    bool may_be_direct_ = true;  // the file system has not said no
  };

  // A file that was not there, for its owner and, as far as the umask lets it, to be read by the group.
  absl::StatusOr<File> Create(const std::string& path) const;
  // One that is there, to be written to in place.
  absl::StatusOr<File> Reopen(const std::string& path) const;
  // A new one, written and synced.
  absl::Status WriteFile(const std::string& path, absl::string_view bytes) const;

  // ALREADY_EXISTS.
  absl::Status MakeFolder(const std::string& path) const;
  absl::Status SyncFolder(const std::string& path) const;
  absl::Status Rename(const std::string& from, const std::string& to) const;
  absl::Status RemoveFile(const std::string& path) const;
  // Removes a folder of files, and as much of it as can be when something fails: the first error is answered. OK where
  // it is not there. Anything else of this name is unlinked, and folders within it stay and are an error.
  absl::Status RemoveFolder(const std::string& path) const;

  struct Entry {
    bool is_folder = false;
    uid_t owner = 0;
    mode_t mode = 0;
  };
  // Of what a path leads to. NOT_FOUND.
  absl::StatusOr<Entry> Look(const std::string& path) const;
  // Whether anything has this name, a link that leads nowhere too.
  absl::StatusOr<bool> Exists(const std::string& path) const;
  // PERMISSION_DENIED unless this process may make files in a folder.
  absl::Status CheckWritable(const std::string& folder) const;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) const;

  // Takes a lock on a file, which is made where it is not there and never removed; it ends with the descriptor, and so
  // with the process. FAILED_PRECONDITION where another process holds it, and where the file system has no locks.
  // `lent`: a descriptor of another process that may hold it for this one; where it does there is nothing more to take.
  absl::StatusOr<Descriptor> Lock(const std::string& path, int lent = -1) const;

 private:
  absl::StatusOr<Descriptor> Open(const std::string& path, int flags, mode_t mode, absl::string_view operation) const;

  DiskCalls* calls_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_DISK_H_
