#include "client/internal/box_copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/status/statusor.h"
#include "client/internal/host_bytes.h"
#include "kernels/base/simd_clones.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/float16.h"

namespace paramshard::internal {
namespace {

// Most elements that are decoded at a time before they are rounded: they stay in the cache.
constexpr int64_t kDecodedElements = 64 << 10;
constexpr int64_t kPartBytes = 1 << 20;  // of ForEachPart

PARAMSHARD_SIMD_CLONES
void RoundToBFloat16(const float* values, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = EncodeBFloat16(values[i]);
}

PARAMSHARD_SIMD_CLONES
void RoundToFloat16(const float* values, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = EncodeFloat16(values[i]);
}

void Store(BoxContent content, const float* values, int64_t count, uint8_t* out) {
  switch (content) {
    case BoxContent::kBFloat16:
      return RoundToBFloat16(values, count, reinterpret_cast<uint16_t*>(out));
    case BoxContent::kFloat16:
      return RoundToFloat16(values, count, reinterpret_cast<uint16_t*>(out));
    case BoxContent::kFloat32:
    case BoxContent::kCodes:
    case BoxContent::kScales:
    case BoxContent::kAmax:
      break;
  }
  memcpy(out, values, count * sizeof(float));
}

// Calls row(i) for rows, or once for all where they are neighbours on both sides.
template <typename Row>
void ForRows(int64_t rows, bool neighbours, Row row) {
  if (neighbours) return row(0, rows);
  for (int64_t i = 0; i < rows; ++i) row(i, 1);
}

struct ByteRows {
  const uint8_t* first = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t row_bytes = 0;

  void CopyTo(uint8_t* out, int64_t out_stride) const {
    ForRows(rows, stride == row_bytes && out_stride == row_bytes, [&](int64_t row, int64_t count) {
      if (row_bytes > 0) memcpy(out + row * out_stride, first + row * stride, count * row_bytes);
    });
  }
};

// The rows of a matrix that a box needs, from a multiple of the granule on, in host memory.
class HostRows {
 public:
  static absl::StatusOr<HostRows> Of(const Matrix& matrix, const RowRange& rows) {
    HostRows host(matrix, rows);
    ASSIGN_OR_RETURN(host.data_, HostBytes::Of(matrix, matrix.data.subspan(
                                                           DataBytes(matrix.encoding, rows.begin, matrix.columns),
                                                           DataBytes(matrix.encoding, rows.size(), matrix.columns))));
    const absl::Span<const uint8_t> scales =
        matrix.scales.empty()
            ? matrix.scales
            : matrix.scales.subspan(host.ScaleOffsetOf(rows.begin, 0),
                                    ScaleBytes(matrix.encoding, matrix.plane, rows.size(), matrix.columns));
    ASSIGN_OR_RETURN(host.scales_, HostBytes::Of(matrix, scales));
    ASSIGN_OR_RETURN(host.amax_, HostBytes::Of(matrix, matrix.amax));
    return host;
  }

  const Encoding& encoding() const { return encoding_; }
  int64_t rows() const { return rows_; }

  ByteRows Codes(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    const int64_t stride = DataBytes(encoding_, 1, columns_);
    return {.first = data_.data() + row * stride + DataBytes(encoding_, 1, column),
            .stride = stride,
            .rows = rows,
            .row_bytes = DataBytes(encoding_, 1, columns)};
  }

  ByteRows Scales(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    const MatrixShape all = ScaleShape(encoding_, plane_, rows_, columns_);
    const MatrixShape some = ScaleShape(encoding_, plane_, rows, columns);
    const int64_t scale_bytes = ScaleBytes(encoding_, plane_, 1, 1);
    return {.first = some.rows == 0 ? nullptr : scales_.data() + ScaleOffsetOf(row, column),
            .stride = all.cols * scale_bytes,
            .rows = some.rows,
            .row_bytes = some.cols * scale_bytes};
  }

  ByteRows Amax() const { return {.first = amax_.data(), .rows = 1, .row_bytes = AmaxBytes(encoding_.format)}; }

  // Decodes rows and columns that begin at a block: whole rows where they lie, else from a copy.
  void Decode(int64_t row, int64_t rows, int64_t column, int64_t columns, float* out) {
    const ByteRows codes = Codes(row, rows, column, columns), scales = Scales(row, rows, column, columns);
    ConstPlane plane{.data = codes.first, .scales = scales.first, .amax = amax_.data()};
    if (columns != columns_) {
      copy_.resize(codes.rows * codes.row_bytes + scales.rows * scales.row_bytes);
      uint8_t* const copied_scales = copy_.data() + codes.rows * codes.row_bytes;
      codes.CopyTo(copy_.data(), codes.row_bytes);
      scales.CopyTo(copied_scales, scales.row_bytes);
      plane = {.data = copy_.data(), .scales = copied_scales, .amax = amax_.data()};
    }
    DecodePlane(encoding_, plane_, plane, rows, columns, out);
  }

 private:
  HostRows(const Matrix& matrix, const RowRange& rows)
      : encoding_(matrix.encoding), plane_(matrix.plane), rows_(rows.size()), columns_(matrix.columns) {}
  int64_t ScaleOffsetOf(int64_t row, int64_t column) const {
    return ScaleOffset(encoding_, plane_, row, column, columns_);
  }

  Encoding encoding_;
  Plane plane_;
  int64_t rows_;
  int64_t columns_;
  HostBytes data_, scales_, amax_;
  std::vector<uint8_t> copy_;  // of columns
};

void DecodeBox(const BoxCopy& copy, HostRows& host, int64_t first_row) {
  const Encoding& encoding = host.encoding();
  const int64_t block = ScaleBlock(encoding, copy.matrix.plane).cols;
  const int64_t column = block == kUnbounded ? copy.first_column : copy.first_column / block * block;
  const int64_t skipped = copy.first_column - column;
  const int64_t columns = skipped + copy.columns;
  const int64_t value_bytes = OutputOf(encoding, copy.content, 1, 1).element_bytes;
  const bool is_dense = skipped == 0 && copy.out_stride == columns * value_bytes;
  const int64_t granule = GranuleRows(encoding.format);
  const int64_t most_rows = std::max<int64_t>(1, kDecodedElements / (granule * columns)) * granule;
  std::vector<float> values;
  for (int64_t row = 0; row < host.rows(); row += most_rows) {
    const int64_t rows = std::min(most_rows, host.rows() - row);
    const int64_t skipped_rows = std::max<int64_t>(0, first_row - row);
    uint8_t* const out = copy.out + (row + skipped_rows - first_row) * copy.out_stride;
    if (copy.content == BoxContent::kFloat32 && is_dense && skipped_rows == 0) {
      host.Decode(row, rows, column, columns, reinterpret_cast<float*>(out));
      continue;
    }
    values.resize(std::max<size_t>(values.size(), rows * columns));
    host.Decode(row, rows, column, columns, values.data());
    ForRows(rows - skipped_rows, is_dense, [&](int64_t i, int64_t count) {
      Store(copy.content, values.data() + (skipped_rows + i) * columns + skipped, count * copy.columns,
            out + i * copy.out_stride);
    });
  }
}

// Returns true if the values are the codes of the format.
bool IsStored(BoxContent content, Format format) {
  return (content == BoxContent::kFloat32 && format == Format::kFP32) ||
         (content == BoxContent::kBFloat16 && format == Format::kBF16) ||
         (content == BoxContent::kFloat16 && format == Format::kFP16);
}

}  // namespace

BoxOutput OutputOf(const Encoding& encoding, BoxContent content, int64_t rows, int64_t columns) {
  const auto of = [](int64_t output_rows, int64_t output_columns, int64_t element_bytes) {
    return BoxOutput{.rows = output_rows, .row_bytes = output_columns * element_bytes, .element_bytes = element_bytes};
  };
  switch (content) {
    case BoxContent::kFloat32:
      return of(rows, columns, sizeof(float));
    case BoxContent::kBFloat16:
    case BoxContent::kFloat16:
      return of(rows, columns, sizeof(uint16_t));
    case BoxContent::kCodes:
      return {.rows = rows, .row_bytes = DataBytes(encoding, 1, columns), .element_bytes = DataBytes(encoding, 1, 1)};
    case BoxContent::kScales: {
      const MatrixShape shape = ScaleShape(encoding, Plane::kRowWise, rows, columns);
      return of(shape.rows, shape.cols, ScaleBytes(encoding, Plane::kRowWise, 1, 1));
    }
    case BoxContent::kAmax:
      break;
  }
  return of(1, 1, AmaxBytes(encoding.format));
}

BoxCopy PartOf(const BoxCopy& copy, const RowRange& rows) {
  BoxCopy part = copy;
  part.rows = rows;
  const int64_t block_rows =
      copy.content == BoxContent::kScales ? ScaleBlock(copy.matrix.encoding, copy.matrix.plane).rows : 1;
  if (copy.out != nullptr) part.out += (rows.begin - copy.rows.begin) / block_rows * copy.out_stride;
  return part;
}

absl::Status CopyBox(const BoxCopy& copy) {
  const Matrix& matrix = copy.matrix;
  if (copy.rows.size() == 0 || copy.columns == 0) return absl::OkStatus();
  const int64_t granule = GranuleRows(matrix.encoding.format);
  const int64_t begin = copy.rows.begin / granule * granule;
  ASSIGN_OR_RETURN(HostRows host, HostRows::Of(matrix, {.begin = begin, .end = copy.rows.end}));
  const int64_t first_row = copy.rows.begin - begin;
  if (copy.content == BoxContent::kScales) {
    host.Scales(first_row, copy.rows.size(), copy.first_column, copy.columns).CopyTo(copy.out, copy.out_stride);
  } else if (copy.content == BoxContent::kAmax) {
    host.Amax().CopyTo(copy.out, copy.out_stride);
  } else if (copy.content == BoxContent::kCodes || IsStored(copy.content, matrix.encoding.format)) {
    host.Codes(first_row, copy.rows.size(), copy.first_column, copy.columns).CopyTo(copy.out, copy.out_stride);
  } else {
    DecodeBox(copy, host, first_row);
  }
  return absl::OkStatus();
}

absl::Status ForEachPart(const BoxCopy& copy,
                         absl::FunctionRef<absl::Status(const BoxCopy& part, absl::Span<const uint8_t> bytes)> use) {
  const Encoding& encoding = copy.matrix.encoding;
  const int64_t granule = GranuleRows(encoding.format);
  const BoxOutput of_granule = OutputOf(encoding, copy.content, granule, copy.columns);
  const int64_t granule_bytes = std::max<int64_t>(1, of_granule.rows * of_granule.row_bytes);
  const int64_t most_rows = std::max<int64_t>(1, kPartBytes / granule_bytes) * granule;
  std::vector<uint8_t> bytes;
  for (RowRange rows = copy.rows; rows.begin < copy.rows.end; rows.begin = rows.end) {
    rows.end = std::min((rows.begin / granule * granule) + most_rows, copy.rows.end);
    const BoxCopy part = PartOf(copy, rows);
    const BoxOutput output = OutputOf(encoding, copy.content, rows.size(), copy.columns);
    bytes.resize(output.rows * output.row_bytes);
    BoxCopy own = part;
    own.out = bytes.data();
    own.out_stride = output.row_bytes;
    RETURN_IF_ERROR(CopyBox(own));
    RETURN_IF_ERROR(use(part, bytes));
  }
  return absl::OkStatus();
}

}  // namespace paramshard::internal
