#include "tests/support/disk_faults.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "kernels/base/check.h"

namespace paramshard::test {

DiskFaults::DiskFaults(std::string library, std::string path, std::string folder)
    : library_(std::move(library)), path_(std::move(path)), folder_(std::move(folder)) {
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  PARAMSHARD_CHECK(fd >= 0 && ftruncate(fd, sizeof(DiskFaultsPage)) == 0);
  void* const memory = mmap(nullptr, sizeof(DiskFaultsPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  PARAMSHARD_CHECK(memory != MAP_FAILED);
  close(fd);
  page_ = new (memory) DiskFaultsPage;
}

DiskFaults::~DiskFaults() { munmap(page_, sizeof(DiskFaultsPage)); }

void DiskFaults::Arm(int64_t n, DiskFault fault) {
  page_->at = 0;
  page_->calls = 0;
  page_->hit = false;
  page_->fault = static_cast<int32_t>(fault);
  page_->at = n;
}

bool DiskFaults::Disarm() {
  page_->at = 0;
  return page_->hit;
}

}  // namespace paramshard::test
