// Sets the wall clock of one other process, like an administrator who sets the machine's clock.
#ifndef PARAMSHARD_TESTS_SUPPORT_STEPPED_CLOCK_H_
#define PARAMSHARD_TESTS_SUPPORT_STEPPED_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace paramshard::test {

// A process that is started with the variables of Environment() has this clock for as long as this object lives. Its
// steady clock is unchanged.
class SteppedClock {
 public:
  static constexpr char kVariable[] = "PARAMSHARD_TEST_WALL_CLOCK";

  // `library` is the path of the module wall_clock; `path` is a file to create.
  SteppedClock(std::string library, std::string path);
  SteppedClock(SteppedClock&& other) noexcept
      : library_(std::move(other.library_)),
        path_(std::move(other.path_)),
        offset_seconds_(std::exchange(other.offset_seconds_, nullptr)) {}
  ~SteppedClock();

  std::vector<std::pair<std::string, std::string>> Environment() const {
    return {{"LD_PRELOAD", library_}, {kVariable, path_}};
  }
  // Negative: back.
  void Step(absl::Duration by) { *offset_seconds_ += absl::ToInt64Seconds(by); }

 private:
  std::string library_, path_;
  std::atomic<int64_t>* offset_seconds_;  // mapped
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_STEPPED_CLOCK_H_
