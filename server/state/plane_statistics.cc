#include "server/state/plane_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/formats/float8.h"
#include "kernels/formats/format.h"
#include "kernels/formats/scale_math.h"

namespace paramshard::server {
namespace {

double Square(double value) { return value * value; }

std::vector<float> DecodeScales(Format format, const uint8_t* scales, int64_t size_bytes) {
  std::vector<float> values;
  if (size_bytes == 0) return values;
  switch (TraitsOf(format).scale_type) {
    case ScaleType::kNone:
      break;
    case ScaleType::kFloat32:
      values.resize(size_bytes / sizeof(float));
      std::memcpy(values.data(), scales, size_bytes);
      break;
    case ScaleType::kE8M0:
      std::transform(scales, scales + size_bytes, std::back_inserter(values), DecodeE8M0);
      break;
    case ScaleType::kE4M3:
      std::transform(scales, scales + size_bytes, std::back_inserter(values), E4M3::Decode);
      break;
  }
  return values;
}

void AddScale(double scale, PlaneStatistics& statistics) {
  const bool has_exponent = std::isfinite(scale) && scale != 0;
  ++statistics.scale_counts[has_exponent ? std::optional(std::ilogb(scale)) : std::nullopt];
  if (std::isnan(scale)) return;
  statistics.scale_min = std::min(scale, statistics.scale_min.value_or(scale));
  statistics.scale_max = std::max(scale, statistics.scale_max.value_or(scale));
}

// The largest value of an element type: its code without sign, and the largest number that rounds to it, as a multiple
// of the value.
struct LargestElement {
  uint32_t code;
  double rounding;
};

LargestElement LargestOf(const Encoding& encoding) {
  switch (encoding.format) {
    case Format::kFP32:
      return {0x7f7fffff, 1};
    case Format::kBF16:
      return {0x7f7f, 1 + 1.0 / 510};
    case Format::kFP16:
      return {0x7bff, 65520.0 / 65504};
    case Format::kNVFP4_2D:
      return {0x7, 7.0 / 6};
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
    case Format::kFP8Block128x128:
    case Format::kMXFP8:
    case Format::kMXFP8_2D:
      break;
  }
  return encoding.element == ElementType::kE5M2 ? LargestElement{0x7b, 61440.0 / 57344}
                                                : LargestElement{0x7e, 464.0 / 448};
}

// The codes of a plane without their signs. Every row begins at a byte.
class Codes {
 public:
  Codes(const Encoding& encoding, const uint8_t* data, int64_t columns)
      : data_(data),
        columns_(columns),
        row_bytes_(DataBytes(encoding, 1, columns)),
        bits_(4 * DataBytes(encoding, 1, 2)) {}

  uint32_t Magnitude(int64_t element) const {
    const uint8_t* const row = data_ + element / columns_ * row_bytes_;
    const int64_t column = element % columns_;
    if (bits_ == 4) return row[column / 2] >> (column % 2 == 0 ? 0 : 4) & 0x7u;
    uint32_t code = 0;
    std::memcpy(&code, row + column * bits_ / 8, bits_ / 8);
    return code & ((uint32_t{1} << (bits_ - 1)) - 1);
  }

 private:
  const uint8_t* const data_;
  const int64_t columns_, row_bytes_, bits_;
};

void AddElement(double master, double decoded, PlaneStatistics& statistics) {
  const double magnitude = std::abs(master);
  const double error = std::isnan(decoded) ? HUGE_VAL : std::abs(decoded - master);
  statistics.amax = std::max(statistics.amax, magnitude);
  statistics.max_error = std::max(statistics.max_error, error);
  if (magnitude > 0) statistics.max_relative_error = std::max(statistics.max_relative_error, error / magnitude);
  statistics.error_square_sum += Square(error);
  statistics.master_square_sum += Square(master);
  if (decoded == 0) ++statistics.zeros;
}

}  // namespace

double PlaneStatistics::Norm() const { return std::sqrt(master_square_sum); }

double PlaneStatistics::RelativeError() const {
  return master_square_sum > 0 ? std::sqrt(error_square_sum / master_square_sum) : 0;
}

PlaneStatistics& PlaneStatistics::operator+=(const PlaneStatistics& other) {
  elements += other.elements;
  non_finite += other.non_finite;
  zeros += other.zeros;
  saturated += other.saturated;
  amax = std::max(amax, other.amax);
  max_error = std::max(max_error, other.max_error);
  max_relative_error = std::max(max_relative_error, other.max_relative_error);
  error_square_sum += other.error_square_sum;
  master_square_sum += other.master_square_sum;
  for (const auto& [exponent, count] : other.scale_counts) scale_counts[exponent] += count;
  if (other.scale_min.has_value()) scale_min = std::min(*other.scale_min, scale_min.value_or(*other.scale_min));
  if (other.scale_max.has_value()) scale_max = std::max(*other.scale_max, scale_max.value_or(*other.scale_max));
  return *this;
}

PlaneStatistics MeasurePlane(const Encoding& encoding, ConstPlane row_wise, int64_t scale_bytes,
                             absl::Span<const float> master, int64_t columns) {
  PlaneStatistics statistics;
  statistics.elements = static_cast<int64_t>(master.size());
  for (float scale : DecodeScales(encoding.format, row_wise.scales, scale_bytes)) AddScale(scale, statistics);
  std::vector<float> decoded(master.size());
  DecodePlane(encoding, Plane::kRowWise, row_wise, statistics.elements / columns, columns, decoded.data());
  const LargestElement largest = LargestOf(encoding);
  const Codes codes(encoding, row_wise.data, columns);
  for (int64_t i = 0; i < statistics.elements; ++i) {
    if (!std::isfinite(master[i])) {
      ++statistics.non_finite;
      continue;
    }
    AddElement(master[i], decoded[i], statistics);
    const bool is_cut = decoded[i] != 0 && std::abs(master[i]) > std::abs(decoded[i]) * largest.rounding;
    if (std::isinf(decoded[i]) || (is_cut && codes.Magnitude(i) == largest.code)) ++statistics.saturated;
  }
  return statistics;
}

}  // namespace paramshard::server
