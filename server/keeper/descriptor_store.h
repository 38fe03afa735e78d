// Descriptors of memory that the keeper holds, by name.
#ifndef PARAMSHARD_SERVER_KEEPER_DESCRIPTOR_STORE_H_
#define PARAMSHARD_SERVER_KEEPER_DESCRIPTOR_STORE_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::server {

// Keeps descriptors open from one server to the next, like the file descriptor store of systemd. Not thread-safe. Names
// follow the rules of KeptStore. Bounded in the number of descriptors and in the bytes of names.
class DescriptorStore {
 public:
  struct Limits {
    size_t descriptors = 1024;
    size_t name_bytes = size_t{64} << 20;
  };

  DescriptorStore() = default;
  explicit DescriptorStore(const Limits& limits) : limits_(limits) {}

  // INVALID_ARGUMENT an invalid name, or a descriptor of a socket, a pipe or a folder. RESOURCE_EXHAUSTED a limit.
  absl::Status Keep(absl::string_view name, wire::FileDescriptor fd);
  // Returns how many descriptors were dropped.
  size_t DropPrefix(absl::string_view prefix);

  // Closes descriptors that earlier calls have dropped or replaced. Memory is free on return if that was its last
  // descriptor, which takes seconds for 100 GB.
  void CloseReleased() { released_.clear(); }

  struct Page {
    std::vector<std::pair<std::string, int>> entries;  // by name
    bool more = false;
  };
  // Returns the first descriptors whose names follow `name`, as many as fit in an answer. Empty: from the start.
  Page After(absl::string_view name) const;

  // Returns names of models that have kept descriptors, at most `most`: the part of their names before the NUL.
  std::vector<std::string> Models(size_t most) const;

  // Returns true if a model would be lost. Names that begin with a NUL belong to no model.
  bool has_models() const { return !Models(1).empty(); }
  size_t size() const { return kept_.size(); }
  bool empty() const { return kept_.empty(); }

 private:
  absl::Status CheckRoom(absl::string_view name) const;

  Limits limits_;
  size_t name_bytes_ = 0;  // of all kept names
  std::map<std::string, wire::FileDescriptor, std::less<>> kept_;
  std::vector<wire::FileDescriptor> released_;  // dropped or replaced, and still open
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_DESCRIPTOR_STORE_H_
