#include "server/state/state_arrays.h"

#include <cstring>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moment.h"
#include "server/state/shard_planes.h"

namespace paramshard::server {

absl::StatusOr<std::vector<float>> StateArrays::Read(const ShardExtent& extent, StateTensor tensor,
                                                     const ExtentPart& part) const {
  const ParameterSpec& spec = extents_.Spec(extent);
  if (RowOf(spec, tensor, TensorForm::kValues).elements == 0) return std::vector<float>();
  if (tensor == StateTensor::kMaster && !extents_.HasMaster(extent)) return DecodedPlane(memory_, extent, part);
  ASSIGN_OR_RETURN(const std::vector<HostView> arrays, Stored(extent, tensor, part));
  const int64_t rows = part.rows.size();
  std::vector<float> values(rows * part.columns);
  if (const std::optional<MomentKind> kind = MomentOf(tensor); kind.has_value()) {
    const ConstMoment moment{.data = arrays[0].data(),
                             .scales = arrays.size() > 1 ? reinterpret_cast<const float*>(arrays[1].data()) : nullptr,
                             .type = *MomentTypeOf(spec, *kind)};
    DecodeMoment(*kind, moment, rows, part.columns, values.data());
  } else if (extents_.HasRemainder(extent)) {
    JoinMasters(arrays[0].data(), reinterpret_cast<const int16_t*>(arrays[1].data()), rows * part.columns,
                values.data());
  } else {
    std::memcpy(values.data(), arrays[0].data(), arrays[0].size());
  }
  return values;
}

absl::StatusOr<std::vector<HostView>> StateArrays::Stored(const ShardExtent& extent, StateTensor tensor,
                                                          const ExtentPart& part) const {
  std::vector<HostView> arrays;
  for (const TensorForm form : {TensorForm::kElements, TensorForm::kRest}) {
    if (RowOf(extents_.Spec(extent), tensor, form).elements == 0) continue;
    ASSIGN_OR_RETURN(arrays.emplace_back(), StoredArray(extent, tensor, form, part));
  }
  return arrays;
}

absl::StatusOr<HostView> StateArrays::StoredArray(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                                  const ExtentPart& part) const {
  const absl::Span<const uint8_t> bytes = BytesOf(extent, tensor, form, part);
  return memory_.device().Read(bytes.data(), static_cast<int64_t>(bytes.size()));
}

absl::StatusOr<int64_t> StateArrays::CopyStored(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                                const ExtentPart& part, DeviceQueue& queue, uint8_t* target) const {
  RETURN_IF_ERROR(memory_.device().health().status());
  const absl::Span<const uint8_t> bytes = BytesOf(extent, tensor, form, part);
  const auto size_bytes = static_cast<int64_t>(bytes.size());
  RETURN_IF_ERROR(queue.Copy({{.target = target, .source = bytes.data(), .size_bytes = size_bytes}}));
  return size_bytes;
}

// Every array holds its rows one after the other.
absl::Status StateArrays::Write(const ShardExtent& extent, StateTensor tensor, TensorForm form, RowRange rows,
                                absl::Span<const uint8_t> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const int64_t row_bytes = RowOf(extents_.Spec(extent), tensor, form).size_bytes();
  PARAMSHARD_CHECK(static_cast<int64_t>(bytes.size()) == rows.size() * row_bytes);
  return memory_.device().Write(ArrayOf(extent, tensor, form) + (rows.begin - extent.rows.begin) * row_bytes, bytes);
}

uint8_t* StateArrays::ArrayOf(const ShardExtent& extent, StateTensor tensor, TensorForm form) const {
  return memory_.ArrayOf(extent, tensor, form) + (extents_.Spec(extent).trainable ? trainable_.position() : 0);
}

absl::Span<const uint8_t> StateArrays::BytesOf(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                               const ExtentPart& part) const {
  const TensorRow row = RowOf(extents_.Spec(extent), tensor, form);
  // Each of a row's scales stands for a block of columns.
  const int64_t columns = extent.columns();
  const int64_t columns_of_element = row.elements == columns ? 1 : kMomentBlockSize;
  const int64_t elements = part.columns == columns ? part.rows.size() * row.elements
                                                   : (part.columns + columns_of_element - 1) / columns_of_element;
  const int64_t before = (part.rows.begin - extent.rows.begin) * row.elements + part.first_column / columns_of_element;
  const int64_t element_bytes = ElementBytes(row.type);
  return absl::MakeConstSpan(ArrayOf(extent, tensor, form) + before * element_bytes, elements * element_bytes);
}

StoredRows EncodeRows(const ParameterSpec& spec, StateTensor tensor, int64_t rows, absl::Span<const float> values) {
  StoredRows stored{.elements = std::vector<uint8_t>(rows * RowOf(spec, tensor, TensorForm::kElements).size_bytes()),
                    .rest = std::vector<uint8_t>(rows * RowOf(spec, tensor, TensorForm::kRest).size_bytes())};
  const auto count = static_cast<int64_t>(values.size());
  if (const std::optional<MomentKind> moment = MomentOf(tensor); moment.has_value()) {
    EncodeMoment(*moment, values.data(), rows, spec.columns(),
                 {stored.elements.data(), reinterpret_cast<float*>(stored.rest.data()), *MomentTypeOf(spec, *moment)});
  } else if (spec.master_type == MasterType::kBF16Remainder) {
    SplitMasters(values.data(), count, stored.elements.data(), reinterpret_cast<int16_t*>(stored.rest.data()));
  } else {
    std::memcpy(stored.elements.data(), values.data(), stored.elements.size());
  }
  return stored;
}

}  // namespace paramshard::server
