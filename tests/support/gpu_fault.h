// Breaks the GPU of another process: the context that it works in, as a kernel that writes to a wild address does.
#ifndef PARAMSHARD_TESTS_SUPPORT_GPU_FAULT_H_
#define PARAMSHARD_TESTS_SUPPORT_GPU_FAULT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::test {

// A keeper that is started with the variables of Environment() has servers whose GPU 0 can be broken, repeatedly in
// each of them.
//
//   GpuFault fault(GPU_FAULT_LIBRARY, directory.path() + "/fault");
//   ...  a daemon is started with fault.Environment(), and trains  ...
//   RETURN_IF_ERROR(fault.Break());
class GpuFault {
 public:
  static constexpr char kVariable[] = "PARAMSHARD_TEST_GPU_FAULT";

  // `library` is the path of the module gpu_fault; `path` is a file that exists while a fault is requested.
  GpuFault(std::string library, std::string path) : library_(std::move(library)), path_(std::move(path)) {}

  std::vector<std::pair<std::string, std::string>> Environment() const {
    return {{"LD_PRELOAD", library_}, {kVariable, path_}};
  }
  // Waits until the kernel has faulted. DEADLINE_EXCEEDED where no server does it.
  absl::Status Break(absl::Duration timeout = absl::Seconds(30)) const;

 private:
  std::string library_, path_;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_GPU_FAULT_H_
