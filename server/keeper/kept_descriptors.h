// What the keeper holds: descriptors of memory, by name.
#ifndef PARAMSHARD_SERVER_KEEPER_KEPT_DESCRIPTORS_H_
#define PARAMSHARD_SERVER_KEEPER_KEPT_DESCRIPTORS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// A value without threads or clock; the rules of KeptStore. What it holds is bounded, in number and in bytes of names.
class KeptDescriptors {
 public:
  struct Limits {
    size_t descriptors = 1024;
    size_t name_bytes = size_t{64} << 20;
  };

  KeptDescriptors() = default;
  explicit KeptDescriptors(const Limits& limits) : limits_(limits) {}

  // INVALID_ARGUMENT a name that may not be, or a descriptor that is no memory: one of a socket, a pipe or a folder.
  // RESOURCE_EXHAUSTED.
  absl::Status Keep(absl::string_view name, wire::FileDescriptor fd);
  // Returns how many there were.
  size_t DropPrefix(absl::string_view prefix);

  // Closes what the calls before have let go. Memory whose last descriptor goes is free on return, which takes long
  // where there is much of it: seconds for 100 GB.
  void CloseLetGo() { let_go_.clear(); }

  struct Page {
    std::vector<std::pair<std::string, int>> entries;  // by name
    bool more = false;
  };
  // The first of those whose names come after `name`, as many as fit in an answer. An empty name: the first of all.
  Page After(absl::string_view name) const;

  // The first names of models that something is kept of, at most `most`: what is before the NUL of its name.
  std::vector<std::string> Models(size_t most) const;

  // Whether there is anything that would be lost: names that begin with a NUL are of no model.
  bool has_models() const { return !Models(1).empty(); }
  size_t size() const { return kept_.size(); }
  bool empty() const { return kept_.empty(); }

 private:
  absl::Status CheckRoom(absl::string_view name) const;

  Limits limits_;
  size_t name_bytes_ = 0;  // of all that are kept
  std::map<std::string, wire::FileDescriptor, std::less<>> kept_;
  std::vector<wire::FileDescriptor> let_go_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEPT_DESCRIPTORS_H_
