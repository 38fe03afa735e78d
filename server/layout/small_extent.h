// Packs the small extent of one unit: where scales and small parameters lie in it.
#ifndef PARAMSHARD_SERVER_LAYOUT_SMALL_EXTENT_H_
#define PARAMSHARD_SERVER_LAYOUT_SMALL_EXTENT_H_

#include <array>
#include <cstdint>
#include <vector>

namespace paramshard::server {

// The runs of a small extent, in their order: forward brings the first two, backward the last two.
enum class Run : uint8_t { kForwardOnly = 0, kBothPhases = 1, kBackwardOnly = 2 };
inline constexpr int kRunCount = 3;

// Assigns offsets in the runs of one unit after the other. What all ranks hold comes first, at
// offsets equal on all ranks, so it must be added first; what one rank owns follows on that rank,
// over what other ranks own.
class SmallExtentPacker {
 public:
  static constexpr int64_t kRunAlignment = 256;
  static constexpr int64_t kPieceAlignment = 16;

  explicit SmallExtentPacker(int ranks);

  // Starts the next unit.
  void Clear();

  // Add a piece and return its offset in the run.
  int64_t AddToAll(Run run, int64_t bytes);
  int64_t AddToOwner(Run run, int owner, int64_t bytes);

  // Offset of the run in the extent, and its size, equal on all ranks. Final once everything is
  // added.
  int64_t RunBegin(Run run) const;
  int64_t RunBytes(Run run) const;

 private:
  struct RunEnds {
    int64_t common = 0;        // end of what all ranks hold
    int64_t largest = 0;       // end of the rank that holds most
    std::vector<int64_t> own;  // bytes after `common`, for each rank
  };
  RunEnds& EndsOf(Run run) { return runs_[static_cast<int>(run)]; }
  const RunEnds& EndsOf(Run run) const { return runs_[static_cast<int>(run)]; }

  std::array<RunEnds, kRunCount> runs_;
  // Ranks that own something in this unit: clearing them costs the unit's size, not the number of
  // ranks.
  std::vector<int> owners_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LAYOUT_SMALL_EXTENT_H_
