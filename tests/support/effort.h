// Share of its work that a test of many rounds does.
//
// Without sanitizers, and in the long tier (./dev test --long): all. With sanitizers, which make a round ten times as
// slow, a part that still meets every line.
#ifndef PARAMSHARD_TESTS_SUPPORT_EFFORT_H_
#define PARAMSHARD_TESTS_SUPPORT_EFFORT_H_

#include <algorithm>
#include <cstdlib>

#include "absl/base/config.h"

namespace paramshard {

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline bool IsLongTier() { return std::getenv("PARAMSHARD_LONG") != nullptr; }

// Number of rounds of a random test that has `all`.
inline int Rounds(int all) { return kSanitized && !IsLongTier() ? std::max(1, all / 10) : all; }

// Step of a loop over all values: 1, or a prime, so that every bit of a byte and every row of a block has its turn.
inline int Stride() { return kSanitized && !IsLongTier() ? 11 : 1; }

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_SUPPORT_EFFORT_H_
