#include "tests/server/base/simulated_disk.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "kernels/base/check.h"
#include "tests/common/checkpoint/saved_model.h"

namespace paramshard::server {

namespace fs = std::filesystem;

bool FaultyCalls::IsFaulty() {
  ++count_;
  return fault_ == Fault::kKill ? count_ >= at_ : fault_ != Fault::kNone && count_ == at_;
}

int FaultyCalls::ErrorNumber() const {
  if (fault_ == Fault::kDiskFull) return ENOSPC;
  return fault_ == Fault::kInterrupted ? EINTR : EIO;
}

template <typename Call>
int64_t FaultyCalls::Do(Call call) {
  if (!IsFaulty() || fault_ == Fault::kShortWrite) return call();
  if (fault_ == Fault::kDoneButFailed) call();
  errno = ErrorNumber();
  return -1;
}

int FaultyCalls::Open(const std::string& path, int flags, mode_t mode) {
  if (!IsFaulty() || fault_ == Fault::kShortWrite) return DiskCalls::Open(path, flags, mode);
  if (fault_ == Fault::kDoneButFailed) Close(DiskCalls::Open(path, flags, mode));
  errno = ErrorNumber();
  return -1;
}

ssize_t FaultyCalls::Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes) {
  const auto write = [&](size_t bytes) { return DiskCalls::Pwrite(fd, data, bytes, offset_bytes); };
  if (std::exchange(next_write_is_full_, false)) {
    errno = ENOSPC;
    return -1;
  }
  if (!IsFaulty()) return write(size_bytes);
  if (fault_ == Fault::kShortWrite) {
    next_write_is_full_ = true;
    return write((size_bytes + 1) / 2);
  }
  if (fault_ == Fault::kDoneButFailed) write(size_bytes);
  errno = ErrorNumber();
  return -1;
}

int FaultyCalls::Fdatasync(int fd) {
  return static_cast<int>(Do([&] { return QuickCalls::Fdatasync(fd); }));
}

int FaultyCalls::Fsync(int fd) {
  if (fsync_has_failed_) ++repeated_fsyncs_;
  const auto result = static_cast<int>(Do([&] { return QuickCalls::Fsync(fd); }));
  fsync_has_failed_ = fsync_has_failed_ || result != 0;
  return result;
}

int FaultyCalls::Fallocate(int fd, int64_t size_bytes) {
  return static_cast<int>(Do([&] { return DiskCalls::Fallocate(fd, size_bytes); }));
}
int FaultyCalls::SetDirect(int fd, bool direct) {
  return static_cast<int>(Do([&] { return DiskCalls::SetDirect(fd, direct); }));
}
int FaultyCalls::Flock(int fd, int operation) {
  return static_cast<int>(Do([&] { return DiskCalls::Flock(fd, operation); }));
}
int FaultyCalls::Mkdir(const std::string& path, mode_t mode) {
  return static_cast<int>(Do([&] { return DiskCalls::Mkdir(path, mode); }));
}
int FaultyCalls::Rename(const std::string& from, const std::string& to) {
  return static_cast<int>(Do([&] { return DiskCalls::Rename(from, to); }));
}
int FaultyCalls::Unlink(const std::string& path) {
  return static_cast<int>(Do([&] { return DiskCalls::Unlink(path); }));
}
int FaultyCalls::Rmdir(const std::string& path) {
  return static_cast<int>(Do([&] { return DiskCalls::Rmdir(path); }));
}
int FaultyCalls::Stat(const std::string& path, struct stat* status) {
  return static_cast<int>(Do([&] { return DiskCalls::Stat(path, status); }));
}
int FaultyCalls::Lstat(const std::string& path, struct stat* status) {
  return static_cast<int>(Do([&] { return DiskCalls::Lstat(path, status); }));
}
int FaultyCalls::Access(const std::string& path, int mode) {
  return static_cast<int>(Do([&] { return DiskCalls::Access(path, mode); }));
}
int FaultyCalls::List(const std::string& path, std::vector<std::string>* names) {
  return static_cast<int>(Do([&] { return DiskCalls::List(path, names); }));
}
int64_t FaultyCalls::FreeBytes(const std::string& path) {
  return Do([&] { return DiskCalls::FreeBytes(path); });
}

int RecordingCalls::Record(int result, Operation operation) {
  if (result == 0) operations_.push_back(std::move(operation));
  return result;
}

int RecordingCalls::Open(const std::string& path, int flags, mode_t mode) {
  struct stat status;
  const bool makes = (flags & O_CREAT) != 0 && DiskCalls::Lstat(path, &status) != 0;
  const int fd = DiskCalls::Open(path, flags, mode);
  if (fd >= 0) paths_[fd] = path;
  if (fd >= 0 && makes) operations_.push_back({Operation::Kind::kCreate, path});
  return fd;
}

int RecordingCalls::Close(int fd) {
  paths_.erase(fd);
  return DiskCalls::Close(fd);
}

ssize_t RecordingCalls::Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes) {
  const ssize_t count = DiskCalls::Pwrite(fd, data, size_bytes, offset_bytes);
  PARAMSHARD_CHECK(count >= 0);
  operations_.push_back({.kind = Operation::Kind::kWrite,
                         .path = paths_.at(fd),
                         .offset_bytes = offset_bytes,
                         .bytes = std::string(static_cast<const char*>(data), count)});
  return count;
}

int RecordingCalls::Fsync(int fd) { return Record(QuickCalls::Fsync(fd), {Operation::Kind::kSync, paths_.at(fd)}); }
int RecordingCalls::Mkdir(const std::string& path, mode_t mode) {
  return Record(DiskCalls::Mkdir(path, mode), {Operation::Kind::kMkdir, path});
}
int RecordingCalls::Rename(const std::string& from, const std::string& to) {
  return Record(DiskCalls::Rename(from, to), {Operation::Kind::kRename, from, to});
}
int RecordingCalls::Unlink(const std::string& path) {
  return Record(DiskCalls::Unlink(path), {Operation::Kind::kUnlink, path});
}
int RecordingCalls::Rmdir(const std::string& path) {
  return Record(DiskCalls::Rmdir(path), {Operation::Kind::kRmdir, path});
}

DiskModel::DiskModel(const std::string& root) : root_(root), tree_(Load(root)) {}

std::shared_ptr<DiskModel::Node> DiskModel::Load(const std::string& path) {
  auto node = std::make_shared<Node>();
  node->is_folder = fs::is_directory(path);
  if (node->is_folder) {
    for (const auto& entry : fs::directory_iterator(path)) {
      node->entries[entry.path().filename()] = Load(entry.path());
    }
  } else {
    node->bytes = checkpoint::ReadText(path);
  }
  node->synced_entries = node->entries;
  node->synced_bytes = node->bytes;
  return node;
}

std::shared_ptr<DiskModel::Node> DiskModel::Find(const std::string& path) const {
  std::shared_ptr<Node> node = tree_;
  for (const fs::path& name : fs::path(path).lexically_relative(root_)) {
    if (name != ".") node = node->entries.at(name);
  }
  return node;
}

DiskModel::Entries& DiskModel::EntriesAround(const std::string& path) const {
  return Find(fs::path(path).parent_path())->entries;
}

void DiskModel::Apply(const Operation& operation) {
  const std::string name = fs::path(operation.path).filename();
  switch (operation.kind) {
    case Operation::Kind::kCreate:
    case Operation::Kind::kMkdir: {
      auto node = std::make_shared<Node>();
      node->is_folder = operation.kind == Operation::Kind::kMkdir;
      EntriesAround(operation.path)[name] = std::move(node);
      return;
    }
    case Operation::Kind::kWrite: {
      std::string& bytes = Find(operation.path)->bytes;
      bytes.resize(std::max(bytes.size(), operation.offset_bytes + operation.bytes.size()));
      bytes.replace(operation.offset_bytes, operation.bytes.size(), operation.bytes);
      return;
    }
    case Operation::Kind::kSync: {
      const std::shared_ptr<Node> node = Find(operation.path);
      node->synced_entries = node->entries;
      node->synced_bytes = node->bytes;
      return;
    }
    case Operation::Kind::kRename: {
      const std::shared_ptr<Node> node = Find(operation.path);
      EntriesAround(operation.path).erase(name);
      EntriesAround(operation.to)[fs::path(operation.to).filename()] = node;
      return;
    }
    case Operation::Kind::kUnlink:
    case Operation::Kind::kRmdir:
      PARAMSHARD_CHECK(EntriesAround(operation.path).erase(name) == 1);
      return;
  }
}

void DiskModel::Materialize(Survivors survivors, const std::string& target) const {
  Materialize(*tree_, survivors, 0, target);
}

// Depth 0 is the root, 1 the model's folder.
void DiskModel::Materialize(const Node& node, Survivors survivors, int depth, const std::string& target) {
  const bool synced_names = survivors == Survivors::kOnlySynced || (survivors == Survivors::kInnerNames && depth <= 1);
  for (const auto& [name, child] : synced_names ? node.synced_entries : node.entries) {
    const std::string path = (fs::path(target) / name).string();
    if (child->is_folder) {
      PARAMSHARD_CHECK(mkdir(path.c_str(), 0700) == 0);
      Materialize(*child, survivors, depth + 1, path);
      continue;
    }
    const bool synced_bytes = survivors == Survivors::kOnlySynced || survivors == Survivors::kNamesWithoutBytes;
    checkpoint::WriteText(path, synced_bytes ? child->synced_bytes : child->bytes);
  }
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace paramshard::server
