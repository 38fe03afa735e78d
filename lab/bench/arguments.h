// Positional counts on the command line of benchmarks, and a check that GPU benchmarks find a GPU.
#ifndef PARAMSHARD_LAB_BENCH_ARGUMENTS_H_
#define PARAMSHARD_LAB_BENCH_ARGUMENTS_H_

#include <cstdlib>
#include <iostream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/environment.h"

namespace paramshard {

// A count on the command line: its name, its variable and its range.
struct Count {
  const char* name;
  int* value;
  int least = 1;
  int most = 1'000'000;
};

// Ends the program, whose command line is wrong.
[[noreturn]] inline void EndWithUsage(absl::string_view what) {
  std::cerr << what << std::endl;
  std::exit(2);
}

// Sets the given counts in order; the others keep their values. Ends the program with 2 if an argument is wrong.
inline void ReadCounts(int argc, char** argv, const std::vector<Count>& counts) {
  const int given = argc - 1;
  const int most = static_cast<int>(counts.size());
  if (given > most) EndWithUsage(absl::StrCat("want at most ", most, " counts, got ", given));
  for (int i = 0; i < given; ++i) {
    const Count& count = counts[i];
    const char* const argument = argv[i + 1];
    if (absl::SimpleAtoi(argument, count.value) && *count.value >= count.least && *count.value <= count.most) continue;
    EndWithUsage(absl::StrCat("argument ", i + 1, ", ", count.name, ": want a number from ", count.least, " to ",
                              count.most, ", got '", argument, "'"));
  }
}

inline void EndWithoutGpu() {
  if (test::HasGpuDriver()) return;
  std::cout << "skipped: no GPU here" << std::endl;
  std::exit(0);
}

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_ARGUMENTS_H_
