// The seed of a random test. Set PARAMSHARD_TEST_SEED to the seed that a failure prints to repeat it.

#ifndef PARAMSHARD_TESTS_SUPPORT_RANDOM_SEED_H_
#define PARAMSHARD_TESTS_SUPPORT_RANDOM_SEED_H_

#include <cstdint>
#include <cstdlib>

namespace paramshard {

inline constexpr char kSeedVariable[] = "PARAMSHARD_TEST_SEED";

// The variable's number, else `otherwise`.
inline uint64_t FirstSeed(uint64_t otherwise) {
  const char* const text = std::getenv(kSeedVariable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_SUPPORT_RANDOM_SEED_H_
