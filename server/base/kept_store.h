// Interface to memory that outlives the server: descriptors, by name, held by another process (the keeper).
#ifndef PARAMSHARD_SERVER_BASE_KEPT_STORE_H_
#define PARAMSHARD_SERVER_BASE_KEPT_STORE_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::server {

// A server gives each piece of a model's memory to the keeper as soon as it has allocated it; a server that is started
// after its death takes them all. A name consists of the model's name, a NUL (which no model's name contains; slashes
// are allowed), and the part of the model:
//
//   blocks NUL journal                 describes the bytes of the others (server/journal/journal.h)
//   blocks NUL rank-3/master           by world rank
//   NUL deletions                      belongs to no model (server/models/deletion_marks.h)
//
// Thread-safe. Every call is bounded in time: a drop, and a call that waits for one, by minutes, because it frees
// memory. A call that fails changes nothing, except after DEADLINE_EXCEEDED: it may still be carried out, and may be
// repeated.
class KeptStore {
 public:
  using Descriptors = std::map<std::string, wire::FileDescriptor>;

  static constexpr size_t kMaxNameBytes = 640;

  virtual ~KeptStore() = default;

  // Keeps a duplicate of `fd`, in place of an earlier descriptor of that name. INVALID_ARGUMENT a name that is empty or
  // longer than kMaxNameBytes, or a descriptor of a socket, a pipe or a folder; RESOURCE_EXHAUSTED more descriptors
  // than may be kept; UNAVAILABLE the keeper is gone.
  virtual absl::Status Keep(absl::string_view name, int fd) = 0;

  // Drops all descriptors whose name begins with `prefix`: a model's name and the NUL. OK if there are none. On return
  // memory that nothing else holds is free. UNAVAILABLE.
  virtual absl::Status DropPrefix(absl::string_view prefix) = 0;

  // Returns duplicates of all descriptors whose name is longer than `prefix` and begins with it: a model's name and the
  // NUL. Their memory was written by another process, which may have died at any point, so its content must be
  // checked. UNAVAILABLE.
  virtual absl::StatusOr<Descriptors> Take(absl::string_view prefix) = 0;
  // Returns all descriptors, for a server that starts. They may exceed a serving process's limit of open files.
  absl::StatusOr<Descriptors> TakeAll() { return Take(absl::string_view()); }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_KEPT_STORE_H_
