#include "server/state/frozen_extents.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard::server {
namespace {

constexpr char kFrozenScratch[] = "paramshard-frozen";

int64_t Fp32Size(const ShardExtent& extent) { return extent.elements * static_cast<int64_t>(sizeof(float)); }

}  // namespace

absl::StatusOr<std::unique_ptr<FrozenExtents>> FrozenExtents::Create(const ShardMemory& memory) {
  std::unique_ptr<FrozenExtents> frozen(new FrozenExtents(memory));
  const ShardExtents& extents = memory.extents();
  std::vector<int> kept;
  for (int i = extents.trainable_count(); i < extents.size(); ++i) {
    if (extents.HasMaster(extents[i])) {
      kept.push_back(i);
    } else {
      frozen->pending_.try_emplace(i);
    }
  }
  if (kept.empty()) return frozen;
  ASSIGN_OR_RETURN(frozen->kept_, ExtentArithmetic::Create(memory, std::move(kept)));
  return frozen;
}

absl::Status FrozenExtents::Fill() {
  if (kept_ != nullptr) RETURN_IF_ERROR(kept_->Fill());
  for (auto& [index, pending] : pending_) pending.source = PlaneSource::kInitialValues;
  return absl::OkStatus();
}

absl::Status FrozenExtents::MeasureAmaxes(ScalingBook& book, CancelCheck check_cancelled) const {
  if (kept_ != nullptr) RETURN_IF_ERROR(kept_->MeasureAmaxes(book, check_cancelled));
  for (const auto& [index, pending] : pending_) {
    const Format format = EncodingOf(extents().Spec(extents()[index]).encoding).format;
    if (!NeedsAmax(format) || pending.source == PlaneSource::kNone) continue;
    ASSIGN_OR_RETURN(const Work work, Load(index, pending));
    RETURN_IF_ERROR(work.arithmetic->MeasureAmaxes(book, check_cancelled));
  }
  return absl::OkStatus();
}

absl::Status FrozenExtents::EncodePlanes(absl::Span<const ExtentNumbers> numbers, CancelCheck check_cancelled) {
  if (kept_ != nullptr) RETURN_IF_ERROR(kept_->EncodePlanes(numbers, check_cancelled));
  for (auto& [index, pending] : pending_) {
    if (pending.source == PlaneSource::kNone) continue;
    ASSIGN_OR_RETURN(const Work work, Load(index, pending));
    RETURN_IF_ERROR(work.arithmetic->EncodePlanes(numbers, check_cancelled));
    Forget(pending);
  }
  return absl::OkStatus();
}

absl::StatusOr<FrozenExtents::Work> FrozenExtents::Load(int index, const Pending& pending) const {
  const ShardExtent& extent = extents()[index];
  Work work;
  const Memory* scratch = &room_;
  if (pending.arithmetic == nullptr) {
    ASSIGN_OR_RETURN(work.scratch, memory_.device().Allocate(kFrozenScratch, Fp32Size(extent), Sharing::kPrivate));
    ASSIGN_OR_RETURN(work.own, ExtentArithmetic::Create(memory_, {index}, {}, &work.scratch));
    scratch = &work.scratch;
  }
  work.arithmetic = pending.arithmetic == nullptr ? work.own.get() : pending.arithmetic.get();
  switch (pending.source) {
    case PlaneSource::kNone:
      break;
    case PlaneSource::kInitialValues:
      RETURN_IF_ERROR(work.arithmetic->Fill());
      break;
    case PlaneSource::kWrittenRows:
      RETURN_IF_ERROR(memory_.device().Write(
          scratch->data(),
          absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(pending.written_rows.get()), Fp32Size(extent))));
      break;
  }
  return work;
}

absl::Status FrozenExtents::MakeRoom(absl::Span<const ShardExtent* const> wanted) {
  int64_t largest = 0;
  for (const ShardExtent* const extent : wanted) {
    if (!extents().HasMaster(*extent)) largest = std::max(largest, Fp32Size(*extent));
  }
  if (largest == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(room_, memory_.device().Allocate(kFrozenScratch, largest, Sharing::kPrivate));
  for (const ShardExtent* const extent : wanted) {
    if (extents().HasMaster(*extent)) continue;
    Pending& pending = PendingOf(*extent);
    RETURN_IF_ERROR(MakeRoomForRows(*extent, pending));
    ASSIGN_OR_RETURN(pending.arithmetic, ExtentArithmetic::Create(memory_, {extents().IndexOf(*extent)}, {}, &room_));
  }
  return absl::OkStatus();
}

absl::Status FrozenExtents::MakeRoomForRows(const ShardExtent& extent, Pending& pending) const {
  if (pending.written_rows == nullptr) pending.written_rows.reset(new (std::nothrow) float[extent.elements]);
  if (pending.written_rows != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("rows of ", extents().Spec(extent).name, ": failed to allocate ",
                                                   Fp32Size(extent), " bytes of host memory"));
}

void FrozenExtents::GiveUpRoom() {
  for (auto& [index, pending] : pending_) {
    pending.arithmetic = nullptr;
    if (pending.source != PlaneSource::kWrittenRows) pending.written_rows = nullptr;
  }
  room_ = Memory();
}

absl::Status FrozenExtents::WriteRows(const ShardExtent& extent, RowRange rows, absl::Span<const float> values) {
  Pending& pending = PendingOf(extent);
  RETURN_IF_ERROR(MakeRoomForRows(extent, pending));
  pending.source = PlaneSource::kWrittenRows;
  std::copy(values.begin(), values.end(),
            pending.written_rows.get() + (rows.begin - extent.rows.begin) * extent.columns());
  return absl::OkStatus();
}

absl::Status FrozenExtents::WritePlane(const ShardExtent& extent, Plane plane, RowRange rows,
                                       const PlaneContent& content) {
  Forget(PendingOf(extent));
  const PlaneSpans spans = PlanesOf(memory_, extent, rows)[plane == Plane::kRowWise ? 0 : 1];
  const std::array<absl::Span<const uint8_t>, 3> contents = {content.data, content.scales, content.amax};
  for (size_t i = 0; i < spans.size(); ++i) {
    if (contents[i].empty()) continue;
    PARAMSHARD_CHECK(contents[i].size() == spans[i].size());
    RETURN_IF_ERROR(memory_.device().Write(spans[i].data(), contents[i]));
  }
  return absl::OkStatus();
}

FrozenExtents::Pending& FrozenExtents::PendingOf(const ShardExtent& extent) {
  const auto found = pending_.find(extents().IndexOf(extent));
  PARAMSHARD_CHECK(found != pending_.end());  // else the extent has a master
  return found->second;
}

void FrozenExtents::Forget(Pending& pending) {
  pending.source = PlaneSource::kNone;
  pending.written_rows = nullptr;
}

absl::Status FrozenExtents::KeepPlanes() const {
  const Memory* const copy = memory_.plane_copy();
  if (copy == nullptr) return absl::OkStatus();
  uint8_t* out = copy->data();
  const auto keep = [&out](const HostView& view) {
    std::memcpy(out, view.data(), view.size());
    out += view.size();
  };
  for (const auto& [index, pending] : pending_) RETURN_IF_ERROR(ReadPlanes(memory_, extents()[index], keep));
  PARAMSHARD_CHECK(out == copy->data() + copy->size_bytes());
  return absl::OkStatus();
}

absl::Status FrozenExtents::BringBackPlanes() {
  const Memory* const copy = memory_.plane_copy();
  if (copy == nullptr) return absl::OkStatus();
  auto left = absl::MakeConstSpan(copy->data(), copy->size_bytes());
  for (auto& [index, pending] : pending_) {
    const ShardExtent& extent = extents()[index];
    for (const PlaneSpans& plane : PlanesOf(memory_, extent, extent.rows)) {
      for (const auto& span : plane) {
        RETURN_IF_ERROR(memory_.device().Write(span.data(), left.subspan(0, span.size())));
        left.remove_prefix(span.size());
      }
    }
    pending.source = PlaneSource::kNone;
  }
  return absl::OkStatus();
}

}  // namespace paramshard::server
