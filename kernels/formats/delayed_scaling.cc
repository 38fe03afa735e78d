#include "kernels/formats/delayed_scaling.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/formats/scale_math.h"

namespace paramshard {

absl::Status DelayedScaling::Check(const Options& options) {
  if (options.history_length < 1 || options.history_length > kMaxHistoryLength) {
    return absl::InvalidArgumentError(absl::StrCat("delayed scaling: want a history length from 1 to ",
                                                   kMaxHistoryLength, ", got ", options.history_length));
  }
  if (std::abs(int64_t{options.margin}) > kMaxMargin) {
    return absl::InvalidArgumentError(absl::StrCat("delayed scaling: want a margin from ", -kMaxMargin, " to ",
                                                   kMaxMargin, ", got ", options.margin));
  }
  return absl::OkStatus();
}

DelayedScaling::DelayedScaling(const Options& options, float fp8_max, float initial_scale)
    : algorithm_(options.algorithm), scaled_max_(std::ldexp(fp8_max, -options.margin)), scale_(initial_scale) {
  PARAMSHARD_CHECK(Check(options).ok());
  ring_.assign(options.history_length, 0.0f);
}

DelayedScaling::DelayedScaling(const Options& options, float fp8_max, float scale, const std::vector<float>& history)
    : DelayedScaling(options, fp8_max, scale) {
  PARAMSHARD_CHECK(history.size() == ring_.size());
  std::reverse_copy(history.begin(), history.end(), ring_.begin());
  newest_ = ring_.size() - 1;
}

std::vector<float> DelayedScaling::history() const {
  // The ring from its newest entry backwards.
  std::vector<float> newest_first(ring_.size());
  std::reverse_copy(ring_.begin(), ring_.end(), newest_first.begin());
  std::rotate(newest_first.begin(), newest_first.end() - 1 - newest_, newest_first.end());
  return newest_first;
}

float DelayedScaling::Update(float amax) {
  newest_ = (newest_ + 1) % ring_.size();
  ring_[newest_] = CanonicalNan(amax);
  scale_ = ComputeDelayedScale(PickedAmax(), scaled_max_, scale_);
  return scale_;
}

float DelayedScaling::PickedAmax() const {
  if (algorithm_ == Algorithm::kMostRecent) return ring_[newest_];
  // Bits order like the magnitudes, with NaN above infinity.
  return *std::max_element(ring_.begin(), ring_.end(), [](float a, float b) { return FloatBits(a) < FloatBits(b); });
}

}  // namespace paramshard
