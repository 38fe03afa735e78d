#include "common/model/small_extent.h"

#include <algorithm>

#include "kernels/base/align.h"
#include "kernels/base/check.h"

namespace paramshard {

SmallExtentPacker::SmallExtentPacker(int ranks) {
  for (RunEnds& ends : runs_) ends.own.resize(ranks, 0);
}

void SmallExtentPacker::Clear() {
  for (RunEnds& ends : runs_) {
    ends.common = ends.largest = 0;
    for (const int owner : owners_) ends.own[owner] = 0;
  }
  owners_.clear();
}

int64_t SmallExtentPacker::AddToAll(PieceRun run, int64_t bytes) {
  PARAMSHARD_CHECK(owners_.empty());
  RunEnds& ends = EndsOf(run);
  const int64_t offset = ends.common;
  ends.common = AlignUp(offset + bytes, kPieceAlignment);
  ends.largest = ends.common;
  return offset;
}

int64_t SmallExtentPacker::AddToOwner(PieceRun run, int owner, int64_t bytes) {
  RunEnds& ends = EndsOf(run);
  const int64_t offset = ends.common + ends.own[owner];
  ends.own[owner] = AlignUp(ends.own[owner] + bytes, kPieceAlignment);
  ends.largest = std::max(ends.largest, ends.common + ends.own[owner]);
  owners_.push_back(owner);
  return offset;
}

int64_t SmallExtentPacker::RunBegin(PieceRun run) const {
  int64_t begin = 0;
  for (int before = 0; before < static_cast<int>(run); ++before) {
    begin += RunBytes(static_cast<PieceRun>(before));
  }
  return begin;
}

int64_t SmallExtentPacker::RunBytes(PieceRun run) const { return AlignUp(EndsOf(run).largest, kRunAlignment); }

}  // namespace paramshard
