// What outlives the server: descriptors of memory, by name, held by another process.
#ifndef PARAMSHARD_SERVER_BASE_KEPT_STORE_H_
#define PARAMSHARD_SERVER_BASE_KEPT_STORE_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// A server gives every piece of memory that a model is made of to the keeper as soon as it has it, and a server that is
// started after its death takes all of them. Names are the model's, a NUL (which no model's name has; it may have
// slashes), and what it is of the model:
//
//   blocks NUL journal                 says what the bytes of the others are (server/journal/journal.h)
//   blocks NUL rank-3/master           by world rank
//   NUL deletions                      of no model (server/store/deletion_marks.h)
//
// Thread-safe. Every call is bounded in time: a drop, and whatever waits for one, by minutes, for it frees memory; what
// fails leaves what is kept as it was, but for DEADLINE_EXCEEDED: it may be carried out yet, and asked for again.
class KeptStore {
 public:
  using Descriptors = std::map<std::string, wire::FileDescriptor>;

  static constexpr size_t kMaxNameBytes = 640;

  virtual ~KeptStore() = default;

  // Keeps a descriptor of its own for what `fd` is, in the place of what had that name. INVALID_ARGUMENT a name that is
  // empty or longer than kMaxNameBytes, or what is no memory: a socket, a pipe, a folder; RESOURCE_EXHAUSTED more
  // descriptors than may be kept; UNAVAILABLE the keeper is gone.
  virtual absl::Status Keep(absl::string_view name, int fd) = 0;

  // Forgets all whose name begins so: a model's, and the NUL. OK when there are none; on return memory that nobody else
  // holds is free. UNAVAILABLE.
  virtual absl::Status DropPrefix(absl::string_view prefix) = 0;

  // Descriptors of all whose name begins so and goes on: a model's, and the NUL; what is kept stays kept. Whatever
  // their memory holds was written by another process, which may have died at any point: it is checked before it is
  // believed. UNAVAILABLE.
  virtual absl::StatusOr<Descriptors> Take(absl::string_view prefix) = 0;
  // Of all that is kept, for a server that starts. They may be more than a process that serves may open.
  absl::StatusOr<Descriptors> TakeAll() { return Take(absl::string_view()); }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_KEPT_STORE_H_
