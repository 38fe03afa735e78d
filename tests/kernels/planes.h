// Planes in memory of their own, for tests.

#ifndef PARAMSHARD_TESTS_KERNELS_PLANES_H_
#define PARAMSHARD_TESTS_KERNELS_PLANES_H_

#include <cstdint>
#include <vector>

#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"

namespace paramshard {

// Data, scales and amax of one plane; empty for a plane that the format lacks. Filled with 0xcd before it is written.
struct OwnedPlane {
  OwnedPlane() = default;
  OwnedPlane(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols) {
    if (plane == Plane::kColumnWise && !HasColumnPlane(encoding.format)) return;
    data.assign(DataBytes(encoding, rows, cols), 0xcd);
    scales.assign(ScaleBytes(encoding, plane, rows, cols), 0xcd);
    if (plane == Plane::kRowWise) amax.assign(AmaxBytes(encoding.format), 0xcd);
  }

  MutablePlane View() { return {data.data(), scales.data(), amax.data()}; }
  ConstPlane ConstView() const { return {data.data(), scales.data(), amax.data()}; }

  friend bool operator==(const OwnedPlane&, const OwnedPlane&) = default;

  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  std::vector<uint8_t> amax;
};

// The planes of a matrix.
struct OwnedPlanes {
  OwnedPlanes(const Encoding& encoding, int64_t rows, int64_t cols)
      : row_wise(encoding, Plane::kRowWise, rows, cols), column_wise(encoding, Plane::kColumnWise, rows, cols) {}

  friend bool operator==(const OwnedPlanes&, const OwnedPlanes&) = default;

  OwnedPlane row_wise;
  OwnedPlane column_wise;
};

inline OwnedPlanes Encode(const Encoding& encoding, const std::vector<float>& matrix, int64_t rows, int64_t cols,
                          const TensorScaling& scaling) {
  OwnedPlanes planes(encoding, rows, cols);
  EncodePlanes(encoding, matrix.data(), rows, cols, planes.row_wise.View(), planes.column_wise.View(), scaling);
  return planes;
}

// Returns the scaling of a matrix that is a whole tensor.
inline TensorScaling ScalingOf(const std::vector<float>& matrix, float delayed_scale = 1.0f) {
  return {Amax(matrix.data(), static_cast<int64_t>(matrix.size())), delayed_scale};
}

inline OwnedPlanes Encode(const Encoding& encoding, const std::vector<float>& matrix, int64_t rows, int64_t cols) {
  return Encode(encoding, matrix, rows, cols, ScalingOf(matrix));
}

inline std::vector<float> Decode(const Encoding& encoding, Plane plane, const OwnedPlane& encoded, int64_t rows,
                                 int64_t cols) {
  std::vector<float> out(rows * cols, -1.0f);
  DecodePlane(encoding, plane, encoded.ConstView(), rows, cols, out.data());
  return out;
}

// Returns the encodings that EncodePlanes() takes, without encodings that differ only in fields that their format
// ignores.
inline std::vector<Encoding> AllEncodings() {
  std::vector<Encoding> encodings;
  for (const FormatTraits& traits : kFormats) {
    for (ElementType element : {ElementType::kNone, ElementType::kE4M3, ElementType::kE5M2, ElementType::kE2M1}) {
      const Encoding encoding = {traits.format, element};
      const bool ignores_element = traits.elements == ElementTypes::kAny;
      if (!CheckEncodable(encoding).ok() || (ignores_element && element != ElementType::kNone)) continue;
      encodings.push_back(encoding);
      if (ReadsPowerOfTwoScales(encoding.format)) encodings.push_back({encoding.format, element, false});
    }
  }
  return encodings;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_KERNELS_PLANES_H_
