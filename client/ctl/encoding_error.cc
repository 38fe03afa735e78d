#include "client/ctl/encoding_error.h"

#include <algorithm>
#include <cmath>

#include "common/weights/quantized_tensor.h"
#include "kernels/formats/format.h"

namespace paramshard::ctl {
namespace {

// Returns true if the element's code is the largest number of its type. Plain formats have infinities instead.
bool IsLargest(const Encoding& encoding, const uint8_t* row, int64_t column) {
  if (encoding.element == ElementType::kE2M1) return (row[column / 2] >> (column % 2 * 4) & 0x7) == 0x7;
  const int largest = encoding.element == ElementType::kE4M3 ? 0x7e : 0x7b;
  return (row[column] & 0x7f) == largest;
}

bool IsSaturated(const Encoding& encoding, float source, float decoded, const uint8_t* row, int64_t column) {
  if (!std::isfinite(decoded)) return true;
  if (!(std::abs(decoded) < std::abs(source)) || weights::IsPlain(encoding.format)) return false;
  return IsLargest(encoding, row, column);
}

}  // namespace

void EncodingError::Add(const Encoding& encoding, MatrixShape matrix, const float* source, const float* decoded,
                        const uint8_t* data) {
  const int64_t row_bytes = DataBytes(encoding, 1, matrix.cols);
  element_count_ += matrix.rows * matrix.cols;
  for (int64_t row = 0; row < matrix.rows; ++row, data += row_bytes) {
    for (int64_t column = 0; column < matrix.cols; ++column, ++source, ++decoded) {
      zero_count_ += *decoded == 0;
      if (!std::isfinite(*source)) {
        ++non_finite_count_;
        continue;
      }
      saturated_count_ += IsSaturated(encoding, *source, *decoded, data, column);
      const double error = std::abs(static_cast<double>(*decoded) - *source);
      source_square_sum_ += static_cast<double>(*source) * *source;
      error_square_sum_ += error * error;
      max_error_ = std::max(max_error_, error);
    }
  }
}

double EncodingError::relative_rms() const {
  return source_square_sum_ == 0 ? 0 : std::sqrt(error_square_sum_ / source_square_sum_);
}

}  // namespace paramshard::ctl
