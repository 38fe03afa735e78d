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

void CopyRows(const ByteRows& from, uint8_t* out, int64_t out_stride) {
  ForRows(from.rows, from.stride == from.row_bytes && out_stride == from.row_bytes, [&](int64_t row, int64_t count) {
    if (from.row_bytes > 0) memcpy(out + row * out_stride, from.first + row * from.stride, count * from.row_bytes);
  });
}

ByteRows CodesOf(const Matrix& matrix, const RowRange& rows, int64_t column, int64_t columns) {
  const int64_t stride = DataBytes(matrix.encoding, 1, matrix.columns);
  return {.first = matrix.data.data() + rows.begin * stride + DataBytes(matrix.encoding, 1, column),
          .stride = stride,
          .rows = rows.size(),
          .row_bytes = DataBytes(matrix.encoding, 1, columns)};
}

ByteRows ScalesOf(const Matrix& matrix, const RowRange& rows, int64_t column, int64_t columns) {
  const MatrixShape all = ScaleShape(matrix.encoding, matrix.plane, matrix.rows, matrix.columns);
  const MatrixShape some = ScaleShape(matrix.encoding, matrix.plane, rows.size(), columns);
  if (some.rows == 0) return {};
  const int64_t scale_bytes = ScaleBytes(matrix.encoding, matrix.plane, 1, 1);
  return {
      .first = matrix.scales.data() + ScaleOffset(matrix.encoding, matrix.plane, rows.begin, column, matrix.columns),
      .stride = all.cols * scale_bytes,
      .rows = some.rows,
      .row_bytes = some.cols * scale_bytes};
}

// The rows of a matrix that a box needs, from a multiple of the granule on, in host memory.
class HostRows {
 public:
  static absl::StatusOr<HostRows> Of(const Matrix& matrix, const RowRange& rows) {
    const auto bytes_of = [](const ByteRows& some, int64_t size) { return absl::MakeConstSpan(some.first, size); };
    HostRows host;
    host.matrix_ = matrix;
    host.matrix_.rows = rows.size();
    host.matrix_.gpu = -1;
    const auto to_host = [&](absl::Span<const uint8_t> from, HostBytes& copy, absl::Span<const uint8_t>& to) {
      ASSIGN_OR_RETURN(copy, HostBytes::Of(matrix.gpu, from));
      to = absl::MakeConstSpan(copy.data(), from.size());
      return absl::OkStatus();
    };
    const int64_t columns = matrix.columns;
    RETURN_IF_ERROR(
        to_host(bytes_of(CodesOf(matrix, rows, 0, columns), DataBytes(matrix.encoding, rows.size(), columns)),
                host.data_, host.matrix_.data));
    RETURN_IF_ERROR(to_host(
        bytes_of(ScalesOf(matrix, rows, 0, columns), ScaleBytes(matrix.encoding, matrix.plane, rows.size(), columns)),
        host.scales_, host.matrix_.scales));
    RETURN_IF_ERROR(to_host(matrix.amax, host.amax_, host.matrix_.amax));
    return host;
  }

  const Matrix& matrix() const { return matrix_; }

  // Decodes rows and columns that begin at a block: whole rows where they lie, else from a copy.
  void Decode(const RowRange& rows, int64_t column, int64_t columns, float* out) {
    const ByteRows codes = CodesOf(matrix_, rows, column, columns), scales = ScalesOf(matrix_, rows, column, columns);
    ConstPlane plane{.data = codes.first, .scales = scales.first, .amax = matrix_.amax.data()};
    if (columns != matrix_.columns) {
      copy_.resize(codes.rows * codes.row_bytes + scales.rows * scales.row_bytes);
      uint8_t* const copied_scales = copy_.data() + codes.rows * codes.row_bytes;
      CopyRows(codes, copy_.data(), codes.row_bytes);
      CopyRows(scales, copied_scales, scales.row_bytes);
      plane = {.data = copy_.data(), .scales = copied_scales, .amax = matrix_.amax.data()};
    }
    DecodePlane(matrix_.encoding, matrix_.plane, plane, rows.size(), columns, out);
  }

 private:
  Matrix matrix_;  // of memory below, or of the host's own
  HostBytes data_, scales_, amax_;
  std::vector<uint8_t> copy_;  // of columns
};

void DecodeBox(const BoxCopy& copy, HostRows& host, int64_t first_row) {
  const Encoding& encoding = copy.matrix.encoding;
  const int64_t block = ScaleBlock(encoding, copy.matrix.plane).cols;
  const int64_t column = block == kUnbounded ? copy.first_column : copy.first_column / block * block;
  const int64_t skipped = copy.first_column - column;
  const int64_t columns = skipped + copy.columns;
  const int64_t value_bytes = OutputOf(encoding, copy.content, 1, 1).element_bytes;
  const bool is_dense = skipped == 0 && copy.out_stride == columns * value_bytes;
  const int64_t granule = GranuleRows(encoding.format);
  const int64_t most_rows = std::max<int64_t>(1, kDecodedElements / (granule * columns)) * granule;
  std::vector<float> values;
  for (int64_t row = 0; row < host.matrix().rows; row += most_rows) {
    const int64_t rows = std::min(most_rows, host.matrix().rows - row);
    const int64_t skipped_rows = std::max<int64_t>(0, first_row - row);
    uint8_t* const out = copy.out + (row + skipped_rows - first_row) * copy.out_stride;
    if (copy.content == BoxContent::kFloat32 && is_dense && skipped_rows == 0) {
      host.Decode({.begin = row, .end = row + rows}, column, columns, reinterpret_cast<float*>(out));
      continue;
    }
    values.resize(std::max<size_t>(values.size(), rows * columns));
    host.Decode({.begin = row, .end = row + rows}, column, columns, values.data());
    ForRows(rows - skipped_rows, is_dense, [&](int64_t i, int64_t count) {
      Store(copy.content, values.data() + (skipped_rows + i) * columns + skipped, count * copy.columns,
            out + i * copy.out_stride);
    });
  }
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
      if (rows == 0 || columns == 0) return of(0, 0, ScaleBytes(encoding, Plane::kRowWise, 1, 1));
      const MatrixShape shape = ScaleShape(encoding, Plane::kRowWise, rows, columns);
      return of(shape.rows, shape.cols, ScaleBytes(encoding, Plane::kRowWise, 1, 1));
    }
    case BoxContent::kAmax:
      break;
  }
  return of(rows == 0 || columns == 0 ? 0 : 1, 1, AmaxBytes(encoding.format));
}

bool IsAsItLies(const BoxCopy& copy) {
  const Format format = copy.matrix.encoding.format;
  switch (copy.content) {
    case BoxContent::kFloat32:
      return format == Format::kFP32;
    case BoxContent::kBFloat16:
      return format == Format::kBF16;
    case BoxContent::kFloat16:
      return format == Format::kFP16;
    case BoxContent::kCodes:
    case BoxContent::kScales:
    case BoxContent::kAmax:
      break;
  }
  return true;
}

ByteRows BytesOf(const BoxCopy& copy) {
  const Matrix& matrix = copy.matrix;
  if (copy.content == BoxContent::kScales) return ScalesOf(matrix, copy.rows, copy.first_column, copy.columns);
  if (copy.content != BoxContent::kAmax) return CodesOf(matrix, copy.rows, copy.first_column, copy.columns);
  return {.first = matrix.amax.data(), .rows = 1, .row_bytes = AmaxBytes(matrix.encoding.format)};
}

ConstPlane PlaneFrom(const Matrix& matrix, int64_t row) {
  const RowRange rows{.begin = row, .end = matrix.rows};
  return {.data = CodesOf(matrix, rows, 0, matrix.columns).first,
          .scales = ScalesOf(matrix, rows, 0, matrix.columns).first,
          .amax = matrix.amax.data()};
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
  BoxCopy own = copy;
  own.matrix = host.matrix();
  own.rows = {.begin = copy.rows.begin - begin, .end = copy.rows.end - begin};
  if (IsAsItLies(own)) {
    CopyRows(BytesOf(own), own.out, own.out_stride);
  } else {
    DecodeBox(own, host, own.rows.begin);
  }
  return absl::OkStatus();
}

RowRange SomeRows(const BoxCopy& copy, int64_t begin, int64_t most_bytes) {
  const int64_t granule = GranuleRows(copy.matrix.encoding.format);
  const BoxOutput of_granule = OutputOf(copy.matrix.encoding, copy.content, granule, copy.columns);
  const int64_t granule_bytes = std::max<int64_t>(1, of_granule.rows * of_granule.row_bytes);
  const int64_t most_rows = std::max<int64_t>(1, most_bytes / granule_bytes) * granule;
  return {.begin = begin, .end = std::min((begin / granule * granule) + most_rows, copy.rows.end)};
}

absl::Status ForEachPart(const BoxCopy& copy,
                         absl::FunctionRef<absl::Status(const BoxCopy& part, absl::Span<const uint8_t> bytes)> use) {
  const Encoding& encoding = copy.matrix.encoding;
  std::vector<uint8_t> bytes;
  for (RowRange rows = copy.rows; rows.begin < copy.rows.end; rows.begin = rows.end) {
    rows = SomeRows(copy, rows.begin, kPartBytes);
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
