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
  std::vector<std::string> seeds;  // good and bad inputs, which are mutated
  std::vector<std::string> words;  // words that inputs consist of
  int runs = 20'000;               // of the test
  void (*run)(const std::string& input) = nullptr;
  // Repairs mutations that would make the reader reject nearly every input at once; null: none.
  std::string (*mend)(std::string input, Mutator& mutator) = nullptr;
};

// The target of this program.
const FuzzTarget& Target();

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_FUZZ_FUZZ_TARGET_H_
