#include "tests/server/models/watched_device.h"

#include <optional>

namespace paramshard::server {
namespace {

class WatchedArithmetic final : public ShardArithmetic {
 public:
  WatchedArithmetic(std::unique_ptr<ShardArithmetic> inner, WatchedDevice::Hooks* hooks)
      : ShardArithmetic(inner->position()), inner_(std::move(inner)), hooks_(hooks) {}

  int64_t muon_bytes() const override { return inner_->muon_bytes(); }
  absl::Status Fill(uint64_t seed, absl::Span<const Initial> initials) override { return inner_->Fill(seed, initials); }
  absl::Status EncodePlanes(absl::Span<const TensorScaling> scalings, CancelCheck check_cancelled) override {
    return inner_->EncodePlanes(scalings, check_cancelled);
  }
  absl::Status EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings) override {
    hooks_->before_encode.Call();
    const absl::Status encoded = inner_->EncodeAfterAmax(active, scalings);
    hooks_->after_encode.Call();
    return encoded;
  }
  absl::StatusOr<std::vector<float>> MeasureAmaxes(CancelCheck check_cancelled) override {
    return inner_->MeasureAmaxes(check_cancelled);
  }
  absl::StatusOr<std::vector<SquareSum>> SumSquares(const std::vector<bool>& active,
                                                    absl::Span<const SumTask> sums) override {
    return inner_->SumSquares(active, sums);
  }
  absl::StatusOr<std::vector<float>> Step(absl::Span<const std::optional<OptimizerStep>> steps,
                                          absl::Span<const TensorScaling> scalings,
                                          const StepProgress& progress) override {
    hooks_->before_step.Call();
    auto amaxes = inner_->Step(steps, scalings, progress);
    set_position(inner_->position());
    hooks_->after_step.Call();
    return amaxes;
  }

 private:
  const std::unique_ptr<ShardArithmetic> inner_;
  WatchedDevice::Hooks* const hooks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardArithmetic>> WatchedDevice::MakeArithmetic(std::vector<ExtentTensors> tensors,
                                                                               StateMoves moves) {
  auto made = inner_->MakeArithmetic(std::move(tensors), std::move(moves));
  if (!made.ok()) return made.status();
  return std::make_unique<WatchedArithmetic>(*std::move(made), hooks_);
}

}  // namespace paramshard::server
