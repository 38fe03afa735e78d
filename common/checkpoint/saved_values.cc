#include "common/checkpoint/saved_values.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moment.h"

namespace paramshard::checkpoint {
namespace {

// Returns the array's rows for some rows of the parameter. A row for the whole tensor stands for every row.
RowRange Covering(const ArrayShape& shape, const RowRange& rows) {
  return shape.rows_per_row == kUnbounded ? RowRange{0, 1} : shape.RowsOf(rows);
}

// Remainders, scales or amax that decoding some rows of the parameter needs.
class DecodingInput {
 public:
  DecodingInput(const Reader& reader, const ParameterPlace& place, ArrayKind kind)
      : reader_(reader),
        place_(place),
        kind_(kind),
        shape_(ShapeOf(reader.spec().units[place.unit].parameters[place.parameter], kind)) {}

  absl::Status Read(const RowRange& rows) {
    if (!shape_.has_value()) return absl::OkStatus();
    held_ = Covering(*shape_, rows);
    bytes_.resize(held_.size() * shape_->row_bytes());
    return reader_.ReadRows(place_.unit, place_.parameter, kind_, held_, absl::MakeSpan(bytes_));
  }
  // Returns the array from the row on that describes a row of the parameter; null if the parameter has no such array.
  const uint8_t* At(int64_t row) const {
    if (!shape_.has_value()) return nullptr;
    const int64_t own_row = shape_->rows_per_row == kUnbounded ? 0 : row / shape_->rows_per_row;
    return bytes_.data() + (own_row - held_.begin) * shape_->row_bytes();
  }
  // Returns the end of the rows from `row` that can be decoded at once: the end of the block that `row` is inside of,
  // else `end`.
  int64_t EndOfBlocks(int64_t row, int64_t end) const {
    const int64_t block = shape_.has_value() ? shape_->rows_per_row : 1;
    if (block == kUnbounded || row % block == 0) return end;
    return std::min(end, (row / block + 1) * block);
  }

 private:
  const Reader& reader_;
  const ParameterPlace place_;
  const ArrayKind kind_;
  const std::optional<ArrayShape> shape_;  // unset where the parameter does not have it
  RowRange held_;
  std::vector<uint8_t> bytes_;
};

ArrayKind RestOf(const ParameterSpec& saved, StateTensor tensor) {
  if (tensor == StateTensor::kMaster && PlanesAreState(saved)) return ArrayKind::kRowWiseScale;
  return KindOf(tensor, TensorForm::kRest);
}

// Decodes rows of one piece.
void Decode(const ParameterSpec& saved, StateTensor tensor, const uint8_t* elements, const uint8_t* rest,
            const uint8_t* amax, int64_t rows, float* values) {
  const int64_t columns = saved.columns();
  if (const std::optional<MomentKind> moment = MomentOf(tensor); moment.has_value()) {
    DecodeMoment(
        *moment,
        {.data = elements, .scales = reinterpret_cast<const float*>(rest), .type = *MomentTypeOf(saved, *moment)}, rows,
        columns, values);
  } else if (PlanesAreState(saved)) {
    DecodePlane(EncodingOf(saved.encoding), Plane::kRowWise, {.data = elements, .scales = rest, .amax = amax}, rows,
                columns, values);
  } else if (rest != nullptr) {
    JoinMasters(elements, reinterpret_cast<const int16_t*>(rest), rows * columns, values);
  } else {
    std::memcpy(values, elements, rows * columns * sizeof(float));
  }
}

}  // namespace

ArrayKind ElementsOf(const ParameterSpec& saved, StateTensor tensor) {
  if (tensor == StateTensor::kMaster && PlanesAreState(saved)) return ArrayKind::kRowWisePlane;
  return KindOf(tensor, TensorForm::kElements);
}

absl::Status ReadValues(const Reader& reader, const ParameterPlace& place, StateTensor tensor, const RowRange& rows,
                        ValueSink sink) {
  const ParameterSpec& saved = reader.spec().units[place.unit].parameters[place.parameter];
  const ArrayKind kind = ElementsOf(saved, tensor);
  const int64_t row_bytes = ShapeOf(saved, kind)->row_bytes();
  DecodingInput rest(reader, place, RestOf(saved, tensor));
  DecodingInput amax(reader, place, ArrayKind::kAmax);
  RETURN_IF_ERROR(rest.Read(rows));
  RETURN_IF_ERROR(amax.Read(rows));
  std::vector<float> values;
  return reader.ReadRows(place.unit, place.parameter, kind, rows,
                         [&](int64_t first_row, absl::Span<const uint8_t> bytes) -> absl::Status {
                           const RowRange run{first_row, first_row + static_cast<int64_t>(bytes.size()) / row_bytes};
                           values.resize(run.size() * saved.columns());
                           // Rows that begin within a block of scales are decoded up to its end, the rest at once.
                           for (int64_t row = run.begin, end = 0; row < run.end; row = end) {
                             end = rest.EndOfBlocks(row, run.end);
                             Decode(saved, tensor, bytes.data() + (row - first_row) * row_bytes, rest.At(row),
                                    amax.At(row), end - row, values.data() + (row - first_row) * saved.columns());
                           }
                           return sink(run, values);
                         });
}

}  // namespace paramshard::checkpoint
