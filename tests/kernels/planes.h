// Planes in memory of their own, for tests.

#ifndef PARAMSHARD_TESTS_KERNELS_PLANES_H_
#define PARAMSHARD_TESTS_KERNELS_PLANES_H_

#include <cstdint>
#include <vector>

#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"

namespace paramshard {

// Data and scales of one plane; empty for a plane that the format lacks. Filled with 0xcd before it is written.
struct OwnedPlane {
  OwnedPlane() = default;
  OwnedPlane(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols) {
    if (plane == Plane::kColumnWise && !HasColumnPlane(encoding.format)) return;
    data.assign(DataBytes(encoding, rows, cols), 0xcd);
    scales.assign(ScaleBytes(encoding, plane, rows, cols), 0xcd);
  }

  MutablePlane View() { return {data.data(), scales.data()}; }
  ConstPlane ConstView() const { return {data.data(), scales.data()}; }

  friend bool operator==(const OwnedPlane&, const OwnedPlane&) = default;

  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
};

// The planes of a matrix.
struct OwnedPlanes {
  OwnedPlanes(const Encoding& encoding, int64_t rows, int64_t cols)
      : row_wise(encoding, Plane::kRowWise, rows, cols), column_wise(encoding, Plane::kColumnWise, rows, cols) {}

  friend bool operator==(const OwnedPlanes&, const OwnedPlanes&) = default;

  OwnedPlane row_wise;
  OwnedPlane column_wise;
};

inline OwnedPlanes Encode(const Encoding& encoding, const std::vector<float>& matrix, int64_t rows, int64_t cols) {
  OwnedPlanes planes(encoding, rows, cols);
  EncodePlanes(encoding, matrix.data(), rows, cols, planes.row_wise.View(), planes.column_wise.View());
  return planes;
}

inline std::vector<float> Decode(const Encoding& encoding, Plane plane, const OwnedPlane& encoded, int64_t rows,
                                 int64_t cols) {
  std::vector<float> out(rows * cols, -1.0f);
  DecodePlane(encoding, plane, encoded.ConstView(), rows, cols, out.data());
  return out;
}

// Every encoding that EncodePlanes takes.
inline std::vector<Encoding> AllEncodings() {
  std::vector<Encoding> encodings;
  for (int format = 1; format <= 9; ++format) {
    for (ElementType element : {ElementType::kE4M3, ElementType::kE5M2, ElementType::kE2M1}) {
      for (bool power_of_two : {true, false}) {
        const Encoding encoding = {static_cast<Format>(format), element, power_of_two};
        if (CheckEncodable(encoding).ok()) encodings.push_back(encoding);
      }
    }
  }
  return encodings;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_KERNELS_PLANES_H_
