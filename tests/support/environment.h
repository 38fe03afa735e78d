// Settings that tests read from their environment, so that they run outside the build tree and on GPUs (./dev bundle).
#ifndef PARAMSHARD_TESTS_SUPPORT_ENVIRONMENT_H_
#define PARAMSHARD_TESTS_SUPPORT_ENVIRONMENT_H_

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace paramshard::test {

inline std::string EnvironmentOr(const char* variable, absl::string_view otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? std::string(otherwise) : value;
}

// Path of one of our programs: in PARAMSHARD_TEST_BIN_DIR, else where it was built.
inline std::string Program(absl::string_view built) {
  const std::string folder = EnvironmentOr("PARAMSHARD_TEST_BIN_DIR", built.substr(0, built.rfind('/')));
  return absl::StrCat(folder, built.substr(built.rfind('/')));
}

// The kind of devices that daemons of tests serve: PARAMSHARD_TEST_DEVICES, `cpu` or `cuda`.
inline std::string TestDevices() { return EnvironmentOr("PARAMSHARD_TEST_DEVICES", "cpu"); }

// Returns true if this machine has NVIDIA's driver. Does not open the driver: a process that forks must not.
inline bool HasGpuDriver() { return access("/dev/nvidiactl", F_OK) == 0; }

// Returns the flags of `count` devices of that kind, from index `first` on.
inline std::vector<std::string> DeviceFlags(int count, int first = 0) {
  std::vector<std::string> flags;
  for (int i = first; i < first + count; ++i) flags.push_back(absl::StrCat("--device=", TestDevices(), ":", i));
  return flags;
}

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_ENVIRONMENT_H_
