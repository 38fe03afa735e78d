// Runs the target of this program on random mutations of its seeds, without libFuzzer.
//
// Every run has a seed of its own, one more than that of the run before. PARAMSHARD_TEST_SEED repeats the run whose
// number a failure prints; PARAMSHARD_FUZZ_SECONDS sets a duration instead of a number of runs.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutator.h"
#include "tests/support/effort.h"
#include "tests/support/random_seed.h"

namespace paramshard {
namespace {

constexpr char kSecondsVariable[] = "PARAMSHARD_FUZZ_SECONDS";

// Is said when the run does not come back; written before, for a signal handler may not format.
char last_words[100];
volatile int last_words_size = 0;

void SayLastWords(int signal) {
  const ssize_t ignored = write(STDERR_FILENO, last_words, last_words_size);
  static_cast<void>(ignored);
  raise(signal);  // once more, with the default action
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = SayLastWords;
  action.sa_flags = SA_RESETHAND;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, nullptr);
}

void RunOnce(uint64_t seed) {
  const FuzzTarget& target = Target();
  last_words_size = std::snprintf(last_words, sizeof(last_words), "\nrepeat with %s=%llu\n", kSeedVariable,
                                  static_cast<unsigned long long>(seed));
  Mutator mutator(seed, target.words);
  std::string input = mutator.Mutate(target.seeds[mutator.Below(target.seeds.size())]);
  if (target.mend != nullptr) input = target.mend(std::move(input), mutator);
  target.run(input);
}

TEST(FuzzTest, ChangedInputsAreTakenOrRefused) {
  const uint64_t first = FirstSeed(1);
  const char* const seconds = std::getenv(kSecondsVariable);
  std::printf("%s=%llu\n", kSeedVariable, static_cast<unsigned long long>(first));
  CatchSignals();
  for (const std::string& seed : Target().seeds) Target().run(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds == nullptr ? 0 : atoi(seconds));
  uint64_t runs = 0;
  while (seconds == nullptr ? runs < static_cast<uint64_t>(Rounds(Target().runs))
                            : std::chrono::steady_clock::now() < end) {
    RunOnce(first + runs++);
  }
  std::printf("%llu runs\n", static_cast<unsigned long long>(runs));
}

}  // namespace
}  // namespace paramshard
