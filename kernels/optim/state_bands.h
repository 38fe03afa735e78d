// Bands: the pieces in which a step moves the optimizer's state, so that an interrupted step can be repeated.
//
// A step that updated the state in place and was killed in the middle of a parameter would leave bytes that may be old
// or new. So a step does not write where it reads. The arrays of the state have room at one end. A step leaves the
// whole state there, the same number of bytes further on in every array, and the next step moves it back. It works band
// by band, a band being rows of consecutive extents, and begins at the end that has the room: a band writes over bytes
// that bands before it have read, never over its own. Extents that take a step are read in one place and written in the
// other; the others are copied. If no extent takes a step, nothing moves.
//
// Two bands are in progress at a time (kBandLanes), so that a GPU does not idle at the end of a band. So the room is as
// large as the two largest neighbours, and an interrupted step leaves at most two bands that are neither untouched nor
// done. Their input is intact: repeating them gives the same bytes.
//
// This requires that bands follow each other in memory as they do in order. So every kind of data of an extent
// (elements of a moment, their scales, weights, remainders) has an array of its own, with all extents and its own room.

#ifndef PARAMSHARD_KERNELS_OPTIM_STATE_BANDS_H_
#define PARAMSHARD_KERNELS_OPTIM_STATE_BANDS_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/formats/format_id.h"

namespace paramshard {

// A band begins with a row of an extent and ends where the next one begins.
struct BandStart {
  int64_t extent = 0;
  int64_t row = 0;  // a multiple of BandRows() of the extent's columns
};

// Rows and elements that make whole tiles of every kernel: tiles have kBandTileRows rows or a divisor of it, and tiles
// of one long row have kBandTileElements elements.
inline constexpr int64_t kBandTileRows = 128;
inline constexpr int64_t kBandTileElements = 8192;

// Returns the number of rows whose multiples bands begin at. Models on disk depend on it: it is the same in every
// build.
constexpr int64_t BandRows(int64_t columns) {
  return std::lcm(kBandTileRows, kBandTileElements / std::gcd(columns, kBandTileElements));
}

// Cuts extents into bands of about `band_elements` elements; at least one band if there is an extent.
std::vector<BandStart> CutIntoBands(absl::Span<const MatrixShape> extents, int64_t band_elements);

// Sizes of bands. With the defaults the room is about a thirtieth of a large state unless rows are very long, and a GPU
// loses no time between bands; smaller bands would be done before a GPU has begun. A program that takes over memory
// from another program must use the same rule.
struct BandRule {
  int64_t most_bands = 64;  // plus one for the rest
  int64_t least_elements = int64_t{4} << 20;

  // Returns the number of elements of a band. Both fields above must be positive.
  int64_t BandElements(absl::Span<const MatrixShape> extents) const;
};

// INVALID_ARGUMENT if bands are out of order, do not begin with the first row, or begin at a row where no band can
// begin. No bands are fine.
absl::Status CheckBands(absl::Span<const MatrixShape> extents, absl::Span<const BandStart> bands);

// An array of the state: the offset of each extent and the size of its rows, in bytes; 0 for extents without data in
// it. Extents follow each other.
struct BandedArray {
  struct Part {
    int64_t offset = 0;
    int64_t row_bytes = 0;
  };
  std::vector<Part> parts;  // by extent
};

// Bytes by which a step has to move the state, and room that every array needs behind its end: two neighbouring bands
// are never longer. A multiple of kMoveUnit; 0 without bands. Requires CheckBands(), and with bands a part of each
// array for every extent.
int64_t MoveDistance(absl::Span<const MatrixShape> extents, absl::Span<const BandStart> bands,
                     absl::Span<const BandedArray> arrays);

// A step moves the state by a multiple of this number of bytes, which keeps every array's alignment.
inline constexpr int64_t kMoveUnit = 512;

inline constexpr int kBandLanes = 2;

// Rows of an extent, from its first; none where `count` is 0.
struct ExtentRows {
  int64_t first = 0;
  int64_t count = 0;
};

// Returns the rows of an extent, which has `rows`, that lie in a band. Without bands all rows are in band 0.
ExtentRows RowsInBand(absl::Span<const BandStart> bands, int band, int64_t extent, int64_t rows);

// The `n`-th band that a step carries out. It begins when all before it are done but the last one: in lane
// n % kBandLanes, behind that one's last. `forward`: the state moves to higher addresses, and the last band is first.
constexpr int BandAt(int n, int band_count, bool forward) { return forward ? band_count - 1 - n : n; }

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_STATE_BANDS_H_
