// Philox4x32-10: a counter-based random generator, a pure function of (counter, key).
//
// Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).

#ifndef PARAMSHARD_KERNELS_RANDOM_PHILOX_H_
#define PARAMSHARD_KERNELS_RANDOM_PHILOX_H_

#include <cstdint>

#include "kernels/base/host_device.h"

namespace paramshard {

struct PhiloxCounter {
  uint32_t word[4];
};

struct PhiloxKey {
  uint32_t word[2];
};

// Four random words.
using PhiloxBlock = PhiloxCounter;

constexpr int kPhiloxRounds = 10;

PARAMSHARD_HOST_DEVICE PhiloxCounter PhiloxRound(PhiloxCounter c, PhiloxKey k) {
  const uint64_t product0 = uint64_t{0xd2511f53u} * c.word[0];
  const uint64_t product1 = uint64_t{0xcd9e8d57u} * c.word[2];
  return {{static_cast<uint32_t>(product1 >> 32) ^ c.word[1] ^ k.word[0], static_cast<uint32_t>(product1),
           static_cast<uint32_t>(product0 >> 32) ^ c.word[3] ^ k.word[1], static_cast<uint32_t>(product0)}};
}

PARAMSHARD_HOST_DEVICE PhiloxBlock Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter = PhiloxRound(counter, key);
    key.word[0] += 0x9e3779b9u;
    key.word[1] += 0xbb67ae85u;
  }
  return counter;
}

// Two words as a double in [0, 1) with 53 random bits: the upper 27 of `high`, then the upper 26 of `low`.
PARAMSHARD_HOST_DEVICE double UnitDouble(uint32_t high, uint32_t low) {
  const double upper = static_cast<double>(static_cast<int32_t>(high >> 5));
  const double lower = static_cast<double>(static_cast<int32_t>(low >> 6));
  return (upper * 67108864.0 + lower) * (1.0 / 9007199254740992.0);
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_RANDOM_PHILOX_H_
