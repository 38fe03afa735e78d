// The sum of squares of a float32 array, in double and in a fixed order, with a count of elements that are not finite.
//
// The order, chosen so that a vector unit and a block of GPU threads can both follow it:
//  1. The array is cut into chunks of 4096 consecutive elements; the last one may be shorter.
//  2. Within a chunk there are 256 lanes that start at 0. Lane j adds the squares of the chunk's elements j, j + 256,
//     j + 512, ... in this order. (The square of a float is exact in double.)
//  3. The lanes become one by a binary tree: for w = 128, 64, ..., 1, lane[j] = lane[j] + lane[j + w] for all j < w.
//     Lane 0 is the chunk's sum.
//  4. While more than one chunk sum is left, the array of chunk sums takes the place of the array in 1 to 3, its values
//     being added as they are instead of squared.
// The sum of an empty array is 0.

#ifndef PARAMSHARD_KERNELS_REDUCE_SUM_OF_SQUARES_H_
#define PARAMSHARD_KERNELS_REDUCE_SUM_OF_SQUARES_H_

#include <cstdint>
#include <vector>

namespace paramshard {

struct SquareSum {
  // Meaningless if non_finite > 0.
  double sum = 0;
  // Number of elements that are NaN or infinite.
  int64_t non_finite = 0;
};

// `values` holds `count` >= 0 floats.
SquareSum SumOfSquares(const float* values, int64_t count);

// Step 1's number of elements.
inline constexpr int64_t kSquareSumChunk = 4096;

// The same sum for an array that is made chunk by chunk, while each chunk is still in the cache.
class SquareSumBuilder {
 public:
  // The array's next chunk: kSquareSumChunk floats, the last one 1 or more.
  void AddChunk(const float* values, int64_t count);
  // Returns the sum over the chunks added so far.
  SquareSum Finish() const;

 private:
  std::vector<double> chunk_sums_;
  int64_t non_finite_ = 0;
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_REDUCE_SUM_OF_SQUARES_H_
