#include "server/state/extent_arithmetic.h"

#include "kernels/base/status_macros.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<ExtentArithmetic>> ExtentArithmetic::Create(const ShardMemory& memory,
                                                                           std::vector<int> extents, StateMoves moves,
                                                                           const Memory* scratch) {
  std::unique_ptr<ExtentArithmetic> made(new ExtentArithmetic(memory, std::move(extents)));
  std::vector<ExtentTensors> tensors;
  for (const int i : made->extents_) {
    tensors.push_back(memory.TensorsOf(memory.extents()[i]));
    if (scratch != nullptr) tensors.back().state.master = reinterpret_cast<float*>(scratch->data());
  }
  ASSIGN_OR_RETURN(made->arithmetic_, memory.device().MakeArithmetic(std::move(tensors), std::move(moves)));
  return made;
}

// A parameter's place in the whole model keys its random numbers, so that every sharding draws the same.
absl::Status ExtentArithmetic::Fill() {
  const ShardExtents& extents = memory_.extents();
  std::vector<ShardArithmetic::Initial> initials;
  for (const int i : extents_) {
    const ShardExtent& extent = extents[i];
    initials.push_back({.value = extents.Spec(extent).initial_value,
                        .parameter_index = extents.PlaceOf(extent),
                        .first_element = extent.rows.begin * extent.columns()});
  }
  return arithmetic_->Fill(extents.spec().seed, initials);
}

absl::Status ExtentArithmetic::MeasureAmaxes(ScalingBook& book, CancelCheck check_cancelled) const {
  ASSIGN_OR_RETURN(const std::vector<float> amaxes, arithmetic_->MeasureAmaxes(check_cancelled));
  for (size_t i = 0; i < amaxes.size(); ++i) {
    const ShardExtent& extent = memory_.extents()[extents_[i]];
    book.AddMaster(extent.unit, extent.parameter, amaxes[i]);
  }
  return absl::OkStatus();
}

absl::Status ExtentArithmetic::EncodePlanes(absl::Span<const ExtentNumbers> numbers, CancelCheck check_cancelled) {
  return arithmetic_->EncodePlanes(ScalingsOf(numbers), check_cancelled);
}

std::vector<TensorScaling> ExtentArithmetic::ScalingsOf(absl::Span<const ExtentNumbers> numbers) const {
  std::vector<TensorScaling> scalings;
  for (const int i : extents_) scalings.push_back(numbers[i].scaling);
  return scalings;
}

}  // namespace paramshard::server
