#include "tests/support/stepped_clock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/check.h"

namespace paramshard::test {

SteppedClock::SteppedClock(std::string library, std::string path)
    : library_(std::move(library)), path_(std::move(path)) {
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  PARAMSHARD_CHECK(fd >= 0 && ftruncate(fd, sizeof(*offset_seconds_)) == 0);
  void* const memory = mmap(nullptr, sizeof(*offset_seconds_), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  PARAMSHARD_CHECK(memory != MAP_FAILED);
  close(fd);
  offset_seconds_ = static_cast<std::atomic<int64_t>*>(memory);
}

SteppedClock::~SteppedClock() {
  if (offset_seconds_ != nullptr) munmap(offset_seconds_, sizeof(*offset_seconds_));
}

}  // namespace paramshard::test
