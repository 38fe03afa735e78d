// How a step moves the optimizer's state, so that what it reads outlives it for a while.
//
// A step that is cut off in the middle of a parameter leaves bytes of which nobody knows whether they are old or new.
// So it does not write where it reads. The arrays of the state have room at one end, and a step leaves the whole state
// there: as many bytes further on in every array, and the next step moves it back. It does so band by band, a band
// being some rows of some extents one behind the other, and begins at the end that has the room: what a band writes
// then lies over bytes that bands before it have read, and never over its own. What takes a step is read in one place
// and written in the other; what takes none is copied: a step moves the whole state, or nothing if nothing takes one.
//
// Two bands are under way at a time (kBandLanes), so that the end of one does not keep a GPU waiting for the other.
// So the room is that of the two largest neighbours, and after a step was cut off at most two bands are neither
// untouched nor done. What they read is still there: they are done again, and give the same bytes.
//
// For that, bands must follow each other in memory as they do in order: what an extent has of several kinds (elements
// of a moment and their scales, weights and remainders) lies in as many arrays, each with all extents and room of its
// own.

#ifndef PARAMSHARD_KERNELS_OPTIM_STATE_BANDS_H_
#define PARAMSHARD_KERNELS_OPTIM_STATE_BANDS_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/formats/format.h"

namespace paramshard {

// A band begins with a row of an extent and ends where the next one begins.
struct BandStart {
  int64_t extent = 0;
  int64_t row = 0;  // a multiple of BandRows() of the extent's columns
};

// A band's rows are whole tiles of every kernel: tiles have so many rows or a divisor of it, and those of one long row
// so many elements.
inline constexpr int64_t kBandTileRows = 128;
inline constexpr int64_t kBandTileElements = 8192;

// Bands begin at multiples of so many rows. It is a part of what is kept of a model, and the same in every build.
constexpr int64_t BandRows(int64_t columns) {
  return std::lcm(kBandTileRows, kBandTileElements / std::gcd(columns, kBandTileElements));
}

// Cuts extents into bands of about so many elements, and at least one where there is an extent.
std::vector<BandStart> CutIntoBands(absl::Span<const MatrixShape> extents, int64_t band_elements);

// How finely a state is cut. The defaults make the room about a thirtieth of a large state, where no row is very long,
// and a GPU loses no time between bands; fewer elements are stepped before a GPU has begun. Whoever takes over memory
// from another program must know that program's.
struct BandRule {
  int64_t most_bands = 64;  // and one more, of what is left
  int64_t least_elements = int64_t{4} << 20;

  // Of a band. Both numbers above 0.
  int64_t BandElements(absl::Span<const MatrixShape> extents) const;
};

// INVALID_ARGUMENT bands that are not in order, do not begin with the first row, or begin with none that a band can
// begin with. No bands are fine.
absl::Status CheckBands(absl::Span<const MatrixShape> extents, absl::Span<const BandStart> bands);

// An array of the state: where each extent begins in it, in bytes, and what a row takes there; 0 where it has none.
// Extents follow each other.
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

// A step moves the state by a multiple of so many bytes, which keeps every array's alignment.
inline constexpr int64_t kMoveUnit = 512;

inline constexpr int kBandLanes = 2;

// The `n`-th band that a step carries out. It begins when all before it are done but the last one: in lane
// n % kBandLanes, behind that one's last. `forward`: the state moves to higher addresses, and the last band is first.
constexpr int BandAt(int n, int band_count, bool forward) { return forward ? band_count - 1 - n : n; }

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_STATE_BANDS_H_
