// Quantization error of planes.
#ifndef PARAMSHARD_SERVER_STATE_PLANE_STATISTICS_H_
#define PARAMSHARD_SERVER_STATE_PLANE_STATISTICS_H_

#include <cstdint>
#include <map>
#include <optional>

#include "absl/types/span.h"
#include "kernels/formats/codec.h"

namespace paramshard::server {

// The statistics of the row-wise planes of one or more extents. Elements whose master is not finite are counted and
// left out of the rest.
struct PlaneStatistics {
  int64_t elements = 0;
  int64_t non_finite = 0;
  int64_t zeros = 0;  // that decode to 0
  // Cut off at the largest value of the element type, by more than rounding would; or infinite where the master is not.
  int64_t saturated = 0;
  double amax = 0;  // the largest magnitude of the master
  double max_error = 0;
  double max_relative_error = 0;  // of one element; 1 where one decodes to 0
  double error_square_sum = 0;
  double master_square_sum = 0;
  // Decoded scale factors: how many lie in [2^exponent, 2^(exponent + 1)), those that are 0 or not finite under none.
  std::map<std::optional<int>, int64_t> scale_counts;
  std::optional<double> scale_min, scale_max;

  double Norm() const;
  // ||decoded - master|| / ||master||, 0 for a zero master.
  double RelativeError() const;
  PlaneStatistics& operator+=(const PlaneStatistics& other);
};

// `scale_bytes` is the size of `row_wise.scales`. Requires CheckEncodable(encoding).ok(); `master` has whole rows of
// `columns`.
PlaneStatistics MeasurePlane(const Encoding& encoding, ConstPlane row_wise, int64_t scale_bytes,
                             absl::Span<const float> master, int64_t columns);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_PLANE_STATISTICS_H_
