// The process that an object belongs to.
#ifndef PARAMSHARD_CLIENT_INTERNAL_OWNER_PROCESS_H_
#define PARAMSHARD_CLIENT_INTERNAL_OWNER_PROCESS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard::internal {

// The process that made an object. fork() leaves the child a copy of every session, whose words, descriptors, streams
// of gRPC and GPU are the parent's: the child must use none of them, and end none of them either.
class OwnerProcess {
 public:
  // The calling process.
  OwnerProcess();

  // Returns true if the caller is that process, and not a fork of it. As cheap as reading a variable.
  bool IsCaller() const;

  // FAILED_PRECONDITION in a forked child, with advice. `object` is the owned object's name.
  absl::Status Check(absl::string_view object) const;

 private:
  uint64_t generation_;
};

// Called before each connection. FAILED_PRECONDITION in a child of a process that has connected before it forked: gRPC's
// threads do not exist there, and its descriptors belong to the parent.
absl::Status CheckGrpcWasNotForked();

// Keeps an object that a forked child must not destroy where a leak checker finds it.
void KeepForEver(void* object);

// Shares an object of this process. A forked child that drops the last reference to its copy destroys nothing: no
// thread of the object lives there to be joined, and what the object would close is still the parent's.
template <typename T>
std::shared_ptr<T> ShareWithinProcess(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [owner = OwnerProcess()](T* dropped) {
    if (owner.IsCaller()) {
      delete dropped;
    } else {
      KeepForEver(dropped);
    }
  });
}

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_OWNER_PROCESS_H_
