// Error statistics of encoding a tensor.
#ifndef PARAMSHARD_CLIENT_CTL_ENCODING_ERROR_H_
#define PARAMSHARD_CLIENT_CTL_ENCODING_ERROR_H_

#include <cstdint>

#include "kernels/formats/format_id.h"

namespace paramshard::ctl {

// Counts and sums over rows that are added band by band. Elements that are not finite before encoding are counted and
// left out of the sums.
class EncodingError {
 public:
  // `source` and `decoded` are the rows before and after, `data` their row-wise plane's data.
  void Add(const Encoding& encoding, MatrixShape matrix, const float* source, const float* decoded,
           const uint8_t* data);

  int64_t element_count() const { return element_count_; }
  // ||decoded - source|| / ||source||, summed in double; 0 for zeros.
  double relative_rms() const;
  // The largest |decoded - source|.
  double max_error() const { return max_error_; }
  // Shares of all elements: decoded to 0; larger than the largest number of their scale, and so clipped or infinite;
  // NaN or infinite before encoding.
  double zero_share() const { return Share(zero_count_); }
  double saturated_share() const { return Share(saturated_count_); }
  double non_finite_share() const { return Share(non_finite_count_); }

 private:
  double Share(int64_t count) const {
    return element_count_ == 0 ? 0 : static_cast<double>(count) / static_cast<double>(element_count_);
  }

  int64_t element_count_ = 0;
  int64_t zero_count_ = 0;
  int64_t saturated_count_ = 0;
  int64_t non_finite_count_ = 0;
  double source_square_sum_ = 0;
  double error_square_sum_ = 0;
  double max_error_ = 0;
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_ENCODING_ERROR_H_
