#include "client/internal/owner_process.h"

#include <pthread.h>

#include <atomic>

#include "absl/strings/str_cat.h"

namespace paramshard::internal {
namespace {

// Number of forks between the program's first process and this one, counted from the first object on.
std::atomic<uint64_t> generation = 0;

struct Kept {
  void* object;
  Kept* next;
};
std::atomic<Kept*> kept = nullptr;

uint64_t CountForks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace

OwnerProcess::OwnerProcess() : generation_(CountForks()) {}

bool OwnerProcess::IsCaller() const { return generation.load(std::memory_order_relaxed) == generation_; }

absl::Status OwnerProcess::Check(absl::string_view object) const {
  if (IsCaller()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(object,
                   ": cannot be used in a forked child of the process that opened it; use it in the "
                   "parent alone, and let a child that needs a daemon connect after exec (in Python: the start "
                   "methods spawn and forkserver)"));
}

absl::Status CheckGrpcWasNotForked() {
  static const OwnerProcess first_that_connected;
  return first_that_connected.Check("connect: gRPC");
}

void KeepForEver(void* object) {
  auto* node = new Kept{.object = object, .next = kept.load()};
  while (!kept.compare_exchange_weak(node->next, node)) {
  }
}

}  // namespace paramshard::internal
