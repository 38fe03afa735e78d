// Delayed scaling: the scale of the next step from the amaxes of earlier steps.
//
// After "FP8 Formats for Deep Learning" (Micikevicius et al.) and TransformerEngine's DelayedScaling recipe.

#ifndef PARAMSHARD_KERNELS_FORMATS_DELAYED_SCALING_H_
#define PARAMSHARD_KERNELS_FORMATS_DELAYED_SCALING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace paramshard {

// The scale of one tensor in FP8_TENSOR_DELAYED, and the window of amaxes that it follows. A value: copies are
// snapshots.
//
//   DelayedScaling scaling(options, E4M3::kMax);
//   float amax = FusedStep(..., {.scale = scaling.scale()});
//   scaling.Update(amax);  // the largest over all ranks
class DelayedScaling {
 public:
  // Choice of the amax in the window that sets the scale.
  enum class Algorithm : uint8_t { kMax = 1, kMostRecent = 2 };

  struct Options {
    Algorithm algorithm = Algorithm::kMax;
    int64_t history_length = 1024;
    // The scale leaves a factor of 2^margin between the amax and the largest value of the element type. May be
    // negative.
    int32_t margin = 0;

    friend bool operator==(const Options& a, const Options& b) {
      return a.algorithm == b.algorithm && a.history_length == b.history_length && a.margin == b.margin;
    }
    friend bool operator!=(const Options& a, const Options& b) { return !(a == b); }
  };

  static constexpr int64_t kMaxHistoryLength = 1 << 16;
  static constexpr int32_t kMaxMargin = 64;

  // INVALID_ARGUMENT for a history length outside [1, kMaxHistoryLength] or a margin outside [-kMaxMargin, kMaxMargin].
  static absl::Status Check(const Options& options);

  // A window of zeros. `fp8_max` is the kMax of the element type.
  //
  // Requires: Check(options).ok().
  DelayedScaling(const Options& options, float fp8_max, float initial_scale = 1.0f);

  // A scale and a window (newest first, history_length of them) that were kept.
  //
  // Requires: Check(options).ok().
  DelayedScaling(const Options& options, float fp8_max, float scale, const std::vector<float>& history);

  // Factor that the next step multiplies elements by.
  float scale() const { return scale_; }

  // The window, newest first.
  std::vector<float> history() const;

  // Enters the amax of a step, the largest over all ranks, and returns the scale of the next one: ComputeDelayedScale()
  // of the amax that the algorithm picks. An amax that is infinite or NaN is the largest of its window: the scale stays
  // while it is in there.
  float Update(float amax);

 private:
  float PickedAmax() const;

  Algorithm algorithm_;
  float scaled_max_;
  float scale_;
  std::vector<float> ring_;
  size_t newest_ = 0;
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_DELAYED_SCALING_H_
