// The shape of a fuzzer: a function that takes any bytes and aborts when something does not hold. Each is one file,
// NAME_fuzz.cc, which CMake makes a test of (fuzz_test.cc changes the seeds at random) and, with Clang, a program of
// libFuzzer.
#ifndef PARAMSHARD_TESTS_FUZZ_FUZZ_TARGET_H_
#define PARAMSHARD_TESTS_FUZZ_FUZZ_TARGET_H_

#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

namespace paramshard {

struct FuzzTarget {
  std::vector<std::string> seeds;  // good and bad inputs, of which changes are made
  std::vector<std::string> words;  // of which inputs are made
  int runs = 20'000;               // of the test
  void (*run)(const std::string& input) = nullptr;
  // Mends what would make the reader refuse nearly every changed input at once; null: nothing.
  std::string (*mend)(std::string input, Mutator& mutator) = nullptr;
};

// The target of this program.
const FuzzTarget& Target();

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_FUZZ_FUZZ_TARGET_H_
