// Simulations of failing disks, of processes killed between two system calls, and of power loss.
#ifndef PARAMSHARD_TESTS_SERVER_BASE_SIMULATED_DISK_H_
#define PARAMSHARD_TESTS_SERVER_BASE_SIMULATED_DISK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/base/disk_calls.h"

namespace paramshard::server {

// The real calls without fsync and fdatasync, so that tests do not depend on the speed of the disk.
class QuickCalls : public DiskCalls {
 public:
  int Fsync(int) override { return 0; }
  int Fdatasync(int) override { return 0; }
};

enum class Fault : uint8_t {
  kNone,
  kIoError,        // one call fails with EIO
  kDiskFull,       // with ENOSPC
  kInterrupted,    // with EINTR
  kShortWrite,     // writes half of what it is given, and the next write says ENOSPC
  kDoneButFailed,  // is done, and fails with EIO: a network has lost the answer
  kKill,           // this and all later calls do nothing: the process is dead
};

// The real calls; the `at`th (from 1) has a fault. Descriptors are always closed.
class FaultyCalls final : public QuickCalls {
 public:
  FaultyCalls(Fault fault, int64_t at) : fault_(fault), at_(at) {}
  FaultyCalls() : FaultyCalls(Fault::kNone, 0) {}

  // Number of calls so far.
  int64_t count() const { return count_; }
  // Number of fsyncs after a failed fsync.
  int repeated_fsyncs() const { return repeated_fsyncs_; }
  bool fsync_has_failed() const { return fsync_has_failed_; }

  int Open(const std::string& path, int flags, mode_t mode) override;
  ssize_t Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes) override;
  int Fallocate(int fd, int64_t size_bytes) override;
  int Fsync(int fd) override;
  int Fdatasync(int fd) override;
  int SetDirect(int fd, bool direct) override;
  int Flock(int fd, int operation) override;
  int Mkdir(const std::string& path, mode_t mode) override;
  int Rename(const std::string& from, const std::string& to) override;
  int Unlink(const std::string& path) override;
  int Rmdir(const std::string& path) override;
  int Stat(const std::string& path, struct stat* status) override;
  int Lstat(const std::string& path, struct stat* status) override;
  int Access(const std::string& path, int mode) override;
  int List(const std::string& path, std::vector<std::string>* names) override;
  int64_t FreeBytes(const std::string& path) override;

 private:
  bool IsFaulty();
  int ErrorNumber() const;
  template <typename Call>
  int64_t Do(Call call);

  const Fault fault_;
  const int64_t at_;
  int64_t count_ = 0;
  bool next_write_is_full_ = false;
  bool fsync_has_failed_ = false;
  int repeated_fsyncs_ = 0;
};

// One call that has changed something or synced it.
struct Operation {
  enum class Kind : uint8_t { kCreate, kWrite, kSync, kMkdir, kRename, kUnlink, kRmdir };
  Kind kind = Kind::kSync;
  std::string path;
  std::string to = {};  // of a rename
  int64_t offset_bytes = 0;
  std::string bytes = {};
};

// The real calls, recorded.
class RecordingCalls final : public QuickCalls {
 public:
  const std::vector<Operation>& operations() const { return operations_; }

  int Open(const std::string& path, int flags, mode_t mode) override;
  int Close(int fd) override;
  ssize_t Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes) override;
  int Fsync(int fd) override;
  int Mkdir(const std::string& path, mode_t mode) override;
  int Rename(const std::string& from, const std::string& to) override;
  int Unlink(const std::string& path) override;
  int Rmdir(const std::string& path) override;

 private:
  int Record(int result, Operation operation);

  std::vector<Operation> operations_;
  std::map<int, std::string> paths_;  // of open descriptors
};

// Operations that survive a power loss.
enum class Survivors : uint8_t {
  kEverything,
  kOnlySynced,         // names of folders and bytes of files as they were synced
  kNamesWithoutBytes,  // all names, but bytes only as they were synced
  kInnerNames,         // the model's folder as it was synced, what lies deeper as it was last
};

// A folder's tree and its part that is on the disk.
class DiskModel {
 public:
  // Loads a folder as if all of it had been synced.
  explicit DiskModel(const std::string& root);

  void Apply(const Operation& operation);
  // Writes what survives into another folder, which is empty.
  void Materialize(Survivors survivors, const std::string& target) const;

 private:
  struct Node;
  using Entries = std::map<std::string, std::shared_ptr<Node>>;
  struct Node {
    bool is_folder = false;
    Entries entries = {};
    Entries synced_entries = {};
    std::string bytes = {};
    std::string synced_bytes = {};
  };

  static std::shared_ptr<Node> Load(const std::string& path);
  // Looks up an existing path under the root.
  std::shared_ptr<Node> Find(const std::string& path) const;
  Entries& EntriesAround(const std::string& path) const;
  static void Materialize(const Node& node, Survivors survivors, int depth, const std::string& target);

  const std::string root_;
  std::shared_ptr<Node> tree_;
};

// Returns the names in a folder, sorted.
std::vector<std::string> NamesIn(const std::string& folder);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_BASE_SIMULATED_DISK_H_
