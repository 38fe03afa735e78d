// Memory that a server leaves when it dies: a copy of its kept memory at that moment.
#ifndef PARAMSHARD_TESTS_SERVER_MODELS_LEFT_MEMORY_H_
#define PARAMSHARD_TESTS_SERVER_MODELS_LEFT_MEMORY_H_

#include <unistd.h>

#include "kernels/base/check.h"
#include "server/device/memory.h"
#include "tests/server/keeper/fake_kept_store.h"

namespace paramshard::server {

// Copies all that is kept, as it is at this moment.
inline void CopyKept(FakeKeptStore& from, FakeKeptStore& to) {
  const auto taken = from.TakeAll();
  PARAMSHARD_CHECK(taken.ok());
  for (const auto& [name, fd] : *taken) {
    const off_t size = lseek(fd.get(), 0, SEEK_END);
    auto copy = Memory::Allocate("copy", size, Sharing::kKept);
    PARAMSHARD_CHECK(copy.ok() && pread(fd.get(), copy->data(), size, 0) == size);
    PARAMSHARD_CHECK(to.Keep(name, copy->fd()).ok());
  }
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MODELS_LEFT_MEMORY_H_
