// A directory that ends with its test.
#ifndef PARAMSHARD_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
#define PARAMSHARD_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"

namespace paramshard::test {

// Lies under the system's temporary one, and is removed with its content at the end. Move-only.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "paramshard-test-XXXXXX").string();
    PARAMSHARD_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
