// A trainer that trains, and writes bytes into the memory shared with its daemon that no client library would write.
#ifndef PARAMSHARD_LAB_CAMPAIGN_HOSTILE_TRAINER_H_
#define PARAMSHARD_LAB_CAMPAIGN_HOSTILE_TRAINER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tests/faults/training.h"

namespace paramshard::test {

// Parts of a session's words page: numbers of both sides, or the ring of commands.
enum class PageArea { kWords, kRing };

// Trains; at points that the seed chooses it changes bytes of the area, and, of words, moves or wakes threads that
// sleep on them. Its own library is the first victim: it may hang or crash, and is to be killed in the end.
absl::Status TrainHostile(Training training, PageArea area, uint64_t seed);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_HOSTILE_TRAINER_H_
