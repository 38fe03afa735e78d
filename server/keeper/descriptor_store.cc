#include "server/keeper/descriptor_store.h"

#include <sys/stat.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/kept_store.h"
#include "server/keeper/keeper_message.h"

namespace paramshard::server {
namespace {

// Rejects sockets: a kept socket would hold open a connection that must end with the server. Takes descriptors without
// a file type, such as memory of a GPU.
absl::Status CheckMemory(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return absl::InvalidArgumentError("keep: want an open descriptor");
  if (S_ISSOCK(info.st_mode) || S_ISFIFO(info.st_mode) || S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError("keep: want a descriptor of memory, got a socket, a pipe or a folder");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DescriptorStore::Keep(absl::string_view name, wire::FileDescriptor fd) {
  if (name.empty() || name.size() > KeptStore::kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep: want a name of 1 to ", KeptStore::kMaxNameBytes, " bytes, got ", name.size()));
  }
  RETURN_IF_ERROR(CheckMemory(fd.get()));
  const auto found = kept_.find(name);
  if (found != kept_.end()) {
    released_.push_back(std::exchange(found->second, std::move(fd)));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckRoom(name));
  kept_.emplace(name, std::move(fd));
  name_bytes_ += name.size();
  return absl::OkStatus();
}

absl::Status DescriptorStore::CheckRoom(absl::string_view name) const {
  if (kept_.size() >= limits_.descriptors) {
    return absl::ResourceExhaustedError(absl::StrCat("keep: want at most ", limits_.descriptors,
                                                     " descriptors, got more; raise the limit of open files (ulimit "
                                                     "-n, LimitNOFILE)"));
  }
  if (name_bytes_ + name.size() > limits_.name_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("keep: want at most ", limits_.name_bytes, " bytes of all names, got more"));
  }
  return absl::OkStatus();
}

size_t DescriptorStore::DropPrefix(absl::string_view prefix) {
  size_t count = 0;
  auto it = kept_.lower_bound(prefix);
  for (; it != kept_.end() && absl::StartsWith(it->first, prefix); it = kept_.erase(it), ++count) {
    name_bytes_ -= it->first.size();
    released_.push_back(std::move(it->second));
  }
  return count;
}

DescriptorStore::Page DescriptorStore::After(absl::string_view name) const {
  Page page;
  size_t bytes = sizeof(KeeperMessageHeader);
  for (auto it = kept_.upper_bound(name); it != kept_.end(); ++it) {
    bytes += KeeperWordBytes(it->first);
    page.more = page.entries.size() == kMaxKeeperMessageDescriptors || bytes > kMaxKeeperMessageBytes;
    if (page.more) break;
    page.entries.emplace_back(it->first, it->second.get());
  }
  return page;
}

std::vector<std::string> DescriptorStore::Models(size_t most) const {
  std::vector<std::string> models;
  for (const auto& [name, fd] : kept_) {
    const std::string model = name.substr(0, name.find('\0'));
    if (model.empty() || (!models.empty() && models.back() == model)) continue;
    if (models.size() == most) break;
    models.push_back(model);
  }
  return models;
}

}  // namespace paramshard::server
