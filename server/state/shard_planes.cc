#include "server/state/shard_planes.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard::server {
namespace {

// The part's rows are counted from the extent's first, and are whole blocks, the last rows of one, or a part of one
// block.
absl::Status DecodeRows(const ShardMemory& memory, const ShardExtent& extent, const ExtentPart& part, float* out) {
  const ComputeDevice& device = memory.device();
  const Encoding encoding = EncodingOf(memory.extents().Spec(extent).encoding);
  const int64_t columns = extent.columns();
  const int64_t data_before = DataBytes(encoding, part.rows.begin, columns) + DataBytes(encoding, 1, part.first_column);
  const int64_t scales_before = ScaleOffset(encoding, Plane::kRowWise, part.rows.begin, part.first_column, columns);
  const auto [all_data, all_scales, all_amax] = PlanesOf(memory, extent, extent.rows).front();
  ASSIGN_OR_RETURN(const HostView data,
                   device.Read(all_data.data() + data_before, DataBytes(encoding, part.rows.size(), part.columns)));
  ASSIGN_OR_RETURN(const HostView scales,
                   device.Read(all_scales.data() + scales_before,
                               ScaleBytes(encoding, Plane::kRowWise, part.rows.size(), part.columns)));
  ASSIGN_OR_RETURN(const HostView amax, device.Read(all_amax.data(), static_cast<int64_t>(all_amax.size())));
  DecodePlane(encoding, Plane::kRowWise, {.data = data.data(), .scales = scales.data(), .amax = amax.data()},
              part.rows.size(), part.columns, out);
  return absl::OkStatus();
}

}  // namespace

std::vector<PlaneSpans> PlanesOf(const ShardMemory& memory, const ShardExtent& extent, RowRange rows) {
  const int64_t columns = extent.columns();
  const Encoding encoding = EncodingOf(memory.extents().Spec(extent).encoding);
  const int64_t first = rows.begin - extent.rows.begin;
  std::vector<PlaneSpans> spans;
  const auto add = [&](Plane plane) {
    const MutablePlane found = PlaneAt(encoding, plane, memory.PlaneOf(extent, plane), columns, first);
    const int64_t data_bytes = DataBytes(encoding, rows.size(), columns);
    const int64_t scale_bytes = ScaleBytes(encoding, plane, rows.size(), columns);
    const int64_t amax_bytes = plane == Plane::kRowWise ? AmaxBytes(encoding.format) : 0;
    spans.push_back({absl::MakeSpan(found.data, data_bytes), absl::MakeSpan(found.scales, scale_bytes),
                     absl::MakeSpan(found.amax, amax_bytes)});
  };
  add(Plane::kRowWise);
  if (HasColumnPlane(encoding.format)) add(Plane::kColumnWise);
  return spans;
}

absl::StatusOr<std::vector<PlaneViews>> PlaneBytes(const ShardMemory& memory, const ShardExtent& extent,
                                                   RowRange rows) {
  const auto read = [&](absl::Span<const uint8_t> span) {
    return memory.device().Read(span.data(), static_cast<int64_t>(span.size()));
  };
  std::vector<PlaneViews> planes;
  for (const auto& [data, scales, amax] : PlanesOf(memory, extent, rows)) {
    PlaneViews& plane = planes.emplace_back();
    ASSIGN_OR_RETURN(plane.data, read(data));
    ASSIGN_OR_RETURN(plane.scales, read(scales));
    ASSIGN_OR_RETURN(plane.amax, read(amax));
  }
  return planes;
}

absl::Status ReadPlanes(const ShardMemory& memory, const ShardExtent& extent,
                        absl::FunctionRef<void(const HostView&)> sink) {
  constexpr size_t kBytesAtATime = kElementsOfAPart * sizeof(float);
  for (const PlaneSpans& plane : PlanesOf(memory, extent, extent.rows)) {
    for (absl::Span<const uint8_t> left : plane) {
      while (!left.empty()) {
        const auto next = left.subspan(0, kBytesAtATime);
        ASSIGN_OR_RETURN(const HostView view, memory.device().Read(next.data(), static_cast<int64_t>(next.size())));
        sink(view);
        left.remove_prefix(next.size());
      }
    }
  }
  return absl::OkStatus();
}

int64_t PlaneSize(const ShardMemory& memory, const ShardExtent& extent) {
  int64_t bytes = 0;
  for (const PlaneSpans& plane : PlanesOf(memory, extent, extent.rows)) {
    for (const auto& span : plane) bytes += static_cast<int64_t>(span.size());
  }
  return bytes;
}

// Reads only the part: a row may be as large as the model.
absl::StatusOr<std::vector<float>> DecodedPlane(const ShardMemory& memory, const ShardExtent& extent,
                                                const ExtentPart& part) {
  const int64_t block_rows = ScaleBlock(EncodingOf(memory.extents().Spec(extent).encoding), Plane::kRowWise).rows;
  std::vector<float> values(part.rows.size() * part.columns);
  // Rows that begin within a block are decoded up to its end, and all that follow at once.
  const int64_t end = part.rows.end - extent.rows.begin;
  int64_t row = part.rows.begin - extent.rows.begin;
  for (float* out = values.data(); row < end;) {
    const int64_t next = row % block_rows == 0 ? end : std::min(end, (row / block_rows + 1) * block_rows);
    RETURN_IF_ERROR(DecodeRows(memory, extent, {{row, next}, part.first_column, part.columns}, out));
    out += (next - row) * part.columns;
    row = next;
  }
  return values;
}

}  // namespace paramshard::server
