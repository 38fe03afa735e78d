// Packer of the small extent of one unit: it places scales and small parameters.
#ifndef PARAMSHARD_COMMON_MODEL_SMALL_EXTENT_H_
#define PARAMSHARD_COMMON_MODEL_SMALL_EXTENT_H_

#include <array>
#include <cstdint>
#include <vector>

namespace paramshard {

// The runs of a small extent, in their order: forward brings the first two, backward the last two.
enum class PieceRun : uint8_t { kForwardOnly = 0, kBothPhases = 1, kBackwardOnly = 2 };
inline constexpr int kRunCount = 3;

// Assigns offsets in the runs of one unit after the other. Pieces that all ranks hold come first, at
// offsets equal on all ranks, so they must be added first; pieces that one rank owns follow on that
// rank, at offsets that other ranks use for their own pieces.
class SmallExtentPacker {
 public:
  static constexpr int64_t kRunAlignment = 256;
  static constexpr int64_t kPieceAlignment = 16;

  explicit SmallExtentPacker(int ranks);

  // Starts the next unit.
  void Clear();

  // Add a piece and return its offset in the run.
  int64_t AddToAll(PieceRun run, int64_t bytes);
  int64_t AddToOwner(PieceRun run, int owner, int64_t bytes);

  // Return the offset of the run in the extent, and its size, equal on all ranks. Final once all
  // pieces are added.
  int64_t RunBegin(PieceRun run) const;
  int64_t RunBytes(PieceRun run) const;

 private:
  struct RunEnds {
    int64_t common = 0;        // end of the pieces that all ranks hold
    int64_t largest = 0;       // end of the rank that holds the most
    std::vector<int64_t> own;  // bytes after `common`, for each rank
  };
  RunEnds& EndsOf(PieceRun run) { return runs_[static_cast<int>(run)]; }
  const RunEnds& EndsOf(PieceRun run) const { return runs_[static_cast<int>(run)]; }

  std::array<RunEnds, kRunCount> runs_;
  // Ranks that own a piece of this unit. Clearing only these costs the unit's size, not the number of
  // ranks.
  std::vector<int> owners_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_SMALL_EXTENT_H_
