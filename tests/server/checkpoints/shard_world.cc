#include "tests/server/checkpoints/shard_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/format.h"
#include "server/state/plane_check.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::ArrayKind;
using checkpoint::ArrayShape;

// In [-1, 1), of a multiplicative hash.
float GradientOf(int64_t commit, int64_t parameter, int64_t element) {
  uint64_t bits = static_cast<uint64_t>(commit * 1'000'003 + parameter) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ static_cast<uint64_t>(element)) * 0xff51afd7ed558ccdu;
  return static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31f;
}

void Store(float value, const MutableGradient& sums, int64_t index) {
  if (sums.type == GradientType::kFP32) {
    static_cast<float*>(sums.data)[index] = value;
  } else {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    static_cast<uint16_t*>(sums.data)[index] = static_cast<uint16_t>(bits >> 16);
  }
}

RowRange Held(const ArrayShape& shape, const ShardExtent& extent) {
  return shape.rows_per_row == kUnbounded ? RowRange{0, 1} : shape.RowsOf(extent.rows);
}

}  // namespace

std::vector<uint8_t> StoredBytes(const Shard& shard, const ShardExtent& extent, ArrayKind kind) {
  const auto copy = [](const HostView& view) { return std::vector<uint8_t>(view.bytes().begin(), view.bytes().end()); };
  if (const auto form = checkpoint::StateFormOf(kind); form.has_value()) {
    return copy(*shard.arrays().StoredArray(extent, form->tensor, form->form, Whole(extent)));
  }
  const checkpoint::PlaneForm form = *checkpoint::PlaneFormOf(kind);
  const std::vector<PlaneViews> planes = *PlaneBytes(shard.memory(), extent);
  const PlaneViews& plane = planes[form.plane == Plane::kRowWise ? 0 : 1];
  if (form.piece == checkpoint::PlanePiece::kData) return copy(plane.data);
  return copy(form.piece == checkpoint::PlanePiece::kScales ? plane.scales : plane.amax);
}

ShardWorld::ShardWorld(const ModelSpec& spec, const checkpoint::World& world, const MovePolicy& moves)
    : spec_(spec), world_(world), layout_(spec_, world.shard_size), book_(spec_) {
  for (int rank = 0; rank < world.size; ++rank) {
    auto shard = Shard::Create(spec_, layout_, rank % world.shard_size, device_.get(), {.moves = moves});
    EXPECT_OK(shard);
    shards_.push_back(*std::move(shard));
  }
  Encode();
}

std::vector<Shard*> ShardWorld::shards(int first_rank, int ranks) const {
  std::vector<Shard*> shards;
  for (int rank = first_rank; rank < first_rank + ranks; ++rank) shards.push_back(shards_[rank].get());
  return shards;
}

void ShardWorld::Encode(absl::Span<const ScalingBook::Record> scaling) {
  book_.Restart();
  for (const auto& shard : shards_) EXPECT_OK(shard->MeasureAmaxes(book_));
  book_.Settle(book_.Offer());
  book_.Restore(scaling);
  for (const auto& shard : shards_) EXPECT_OK(shard->EncodePlanes(book_));
}

void ShardWorld::Step() {
  ++commit_number_;
  for (const auto& shard : shards_) {
    int64_t number = 0;
    for (int unit = 0; unit < static_cast<int>(spec_.units.size()); ++unit) {
      const ShardGradients::PushTarget target = shard->gradients().BeginPush(unit);
      for (size_t i = 0; i < target.accumulators.size(); ++i, ++number) {
        if (target.accumulators[i].data == nullptr) continue;
        const ShardExtent& extent = *shard->extents().Find(unit, static_cast<int>(i));
        const int64_t first = extent.rows.begin * shard->extents().Spec(extent).columns();
        for (int64_t element = 0; element < extent.elements; ++element) {
          Store(GradientOf(commit_number_, number, first + element), target.accumulators[i], element);
        }
      }
      shard->gradients().EndPush(unit, {});
    }
  }
  const StepParameters step{
      .groups = std::vector<Hyperparameters>(spec_.groups.size(), {.learning_rate = 0.01f, .weight_decay = 0.01f})};
  for (const auto& shard : shards_) EXPECT_OK(shard->Step(step, book_));
  book_.Settle(book_.Offer());
  for (const auto& shard : shards_) EXPECT_OK(shard->EncodeAfterAmax(book_));
}

checkpoint::SavedModel ShardWorld::Save() const {
  checkpoint::SavedModel::Arrays arrays;
  checkpoint::CommonState common{.commit_number = commit_number_, .version = commit_number_};
  for (int unit = 0; unit < static_cast<int>(spec_.units.size()); ++unit) {
    for (int i = 0; i < static_cast<int>(spec_.units[unit].parameters.size()); ++i) {
      const ParameterSpec& spec = spec_.units[unit].parameters[i];
      common.step_counts.push_back(0);
      for (int rank = 0; rank < world_.shard_size; ++rank) {
        const Shard& shard = *shards_[rank];
        const ShardExtent* const extent = shard.extents().Find(unit, i);
        if (extent == nullptr) continue;
        absl::ReaderMutexLock lock(&shard.mutex());
        common.step_counts.back() = shard.numbers(*extent).step;
        for (const ArrayKind kind : checkpoint::ArraysOf(spec)) {
          const ArrayShape shape = *checkpoint::ShapeOf(spec, kind);
          std::vector<uint8_t>& array = arrays[checkpoint::TensorKey(spec, kind)];
          array.resize(shape.size_bytes());
          const std::vector<uint8_t> bytes = StoredBytes(shard, *extent, kind);
          std::copy(bytes.begin(), bytes.end(), array.begin() + Held(shape, *extent).begin * shape.row_bytes());
        }
      }
    }
  }
  for (const ScalingBook::Record& record : book_.records()) {
    checkpoint::BookEntry& entry = common.book.emplace_back();
    entry = {record.unit, record.parameter, record.amax, record.scale, record.is_fresh};
    if (record.history.has_value()) entry.delayed = {record.history->scale, record.history->amaxes};
  }
  return {spec_, std::move(arrays), std::move(common)};
}

std::string ShardWorld::FirstDifference(const checkpoint::SavedModel::Arrays& saved) const {
  for (size_t rank = 0; rank < shards_.size(); ++rank) {
    const Shard& shard = *shards_[rank];
    for (const ShardExtent& extent : shard.extents()) {
      absl::ReaderMutexLock lock(&shard.mutex());
      for (const ArrayKind kind : checkpoint::ArraysOf(shard.extents().Spec(extent))) {
        const ArrayShape shape = *checkpoint::ShapeOf(shard.extents().Spec(extent), kind);
        const std::string key = checkpoint::TensorKey(shard.extents().Spec(extent), kind);
        const std::vector<uint8_t> bytes = StoredBytes(shard, extent, kind);
        const RowRange rows = Held(shape, extent);
        const bool is_equal =
            static_cast<int64_t>(bytes.size()) == rows.size() * shape.row_bytes() &&
            std::equal(bytes.begin(), bytes.end(), saved.at(key).begin() + rows.begin * shape.row_bytes());
        if (!is_equal) return absl::StrCat("rank ", rank, ": ", key);
      }
    }
  }
  return "";
}

std::vector<std::vector<uint8_t>> ShardWorld::Planes() const {
  std::vector<std::vector<uint8_t>> all;
  for (const auto& shard : shards_) {
    for (const ShardExtent& extent : shard->extents()) {
      absl::ReaderMutexLock lock(&shard->mutex());
      std::vector<uint8_t>& bytes = all.emplace_back();
      EXPECT_OK(ReadPlanes(shard->memory(), extent, [&](const HostView& view) {
        bytes.insert(bytes.end(), view.bytes().begin(), view.bytes().end());
      }));
    }
  }
  return all;
}

std::vector<int64_t> ShardWorld::Steps() const {
  std::vector<int64_t> steps;
  for (const auto& shard : shards_) {
    absl::ReaderMutexLock lock(&shard->mutex());
    for (const ShardExtent& extent : shard->extents()) steps.push_back(shard->numbers(extent).step);
  }
  return steps;
}

bool ShardWorld::PlanesMatch() const {
  for (const auto& shard : shards_) {
    absl::ReaderMutexLock lock(&shard->mutex());
    for (const ShardExtent& extent : shard->extents()) {
      const absl::StatusOr<bool> match = PlanesMatchMaster(*shard, extent);
      if (!match.ok() || !*match) return false;
    }
  }
  return true;
}

}  // namespace paramshard::server
