// Copies of boxes: rows and columns of a plane, decoded or as stored.
#ifndef PARAMSHARD_CLIENT_INTERNAL_BOX_COPY_H_
#define PARAMSHARD_CLIENT_INTERNAL_BOX_COPY_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/plan.h"
#include "common/model/row_range.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"

namespace paramshard::internal {

// A box within one plane. Codes and scales begin at a block of a scale, and end at one or at the plane's edge. The scale
// of a whole tensor and the amax have one row.
struct BoxCopy {
  Matrix matrix = {};
  int64_t matrix_row = 0;  // row of the parameter with which the matrix begins
  RowRange rows = {};      // of the matrix
  int64_t first_column = 0;
  int64_t columns = 0;
  BoxContent content = BoxContent::kFloat32;
  uint8_t* out = nullptr;  // null where only ForEachPart is called
  int64_t out_stride = 0;
};

// Returns the rows of bytes of a box in a plane.
BoxOutput OutputOf(const Encoding& encoding, BoxContent content, int64_t rows, int64_t columns);

// Rows of bytes where they lie.
struct ByteRows {
  const uint8_t* first = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t row_bytes = 0;
};

// Returns true if the box's bytes are bytes of the plane.
bool IsAsItLies(const BoxCopy& copy);
// Returns these bytes, in the memory of the plane. Requires IsAsItLies.
ByteRows BytesOf(const BoxCopy& copy);
// Returns the plane from a row on, a multiple of the format's granule.
ConstPlane PlaneFrom(const Matrix& matrix, int64_t row);

// Returns the part of a box with some of its rows, in the same memory. Requires that these begin at a block where the
// content is codes or scales.
BoxCopy PartOf(const BoxCopy& copy, const RowRange& rows);

// Copies from host memory, or a GPU, to host memory. Errors of CopyFromGpu. A decoded copy of whole rows of host memory to float32
// neighbours allocates nothing.
absl::Status CopyBox(const BoxCopy& copy);

// Returns the rows of a box from `begin` on whose copies take `most_bytes`, or one block of rows.
RowRange SomeRows(const BoxCopy& copy, int64_t begin, int64_t most_bytes);

// Copies a box to memory of its own, some rows at a time, and calls `use` with each part and its bytes: rows are
// neighbours there. Errors of CopyBox and `use`.
absl::Status ForEachPart(const BoxCopy& copy,
                         absl::FunctionRef<absl::Status(const BoxCopy& part, absl::Span<const uint8_t> bytes)> use);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_BOX_COPY_H_
