// Recorder of recent events of a daemon's ranks, in one epoch of a model: three rings for each rank.
#ifndef PARAMSHARD_SERVER_OBSERVE_RECORDER_H_
#define PARAMSHARD_SERVER_OBSERVE_RECORDER_H_

#include <cstdint>
#include <vector>

#include "server/observe/event_ring.h"

namespace paramshard::server {

// Always on: an event costs less than 100 ns, and a rank's rings take kBytesOfRank.
class Recorder {
 public:
  struct Rings {
    EventRing commands;  // the thread that takes them, under the epoch's mutex
    EventRing gathers;   // the rank's gather thread
    EventRing pushes;    // the rank's push thread
  };
  static constexpr size_t kBytesOfRank = 3 * EventRing::SizeBytes();

  Recorder(int64_t epoch, int ranks, int first_rank) : epoch_(epoch), first_rank_(first_rank), rings_(ranks) {}

  Rings& of(int rank) { return rings_[rank]; }
  const Rings& of(int rank) const { return rings_[rank]; }
  int64_t epoch() const { return epoch_; }
  int ranks() const { return static_cast<int>(rings_.size()); }
  int first_rank() const { return first_rank_; }

 private:
  const int64_t epoch_;
  const int first_rank_;
  std::vector<Rings> rings_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_RECORDER_H_
