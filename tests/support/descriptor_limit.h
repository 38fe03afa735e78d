// Limits on this process's file descriptors, for as long as a test wants them.

#ifndef PARAMSHARD_TESTS_SUPPORT_DESCRIPTOR_LIMIT_H_
#define PARAMSHARD_TESTS_SUPPORT_DESCRIPTOR_LIMIT_H_

#include <sys/resource.h>
#include <unistd.h>

namespace paramshard {

// Sets the soft limit of RLIMIT_NOFILE. Descriptors that are open stay open.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t soft) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{.rlim_cur = soft, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

  // Under which no descriptor can be opened any more.
  static rlim_t NoneLeft() {
    const int lowest_free = dup(STDIN_FILENO);
    close(lowest_free);
    return static_cast<rlim_t>(lowest_free);
  }

 private:
  rlimit before_{};
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_SUPPORT_DESCRIPTOR_LIMIT_H_
