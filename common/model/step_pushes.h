// Pushes of each unit since the last commit.
#ifndef PARAMSHARD_COMMON_MODEL_STEP_PUSHES_H_
#define PARAMSHARD_COMMON_MODEL_STEP_PUSHES_H_

#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"

namespace paramshard {

// Holds a step to MostPushesPerStep(). The client checks before it sends a push, the daemon when it receives it.
class StepPushes {
 public:
  // `spec` outlives it.
  explicit StepPushes(const ModelSpec& spec) : spec_(spec), pushes_(spec.units.size(), 0) {}

  bool Has(int unit) const { return pushes_[unit] > 0; }
  // FAILED_PRECONDITION if the unit has been pushed as often as the model accepts; names the unit and the field.
  absl::Status Check(int unit) const;
  void Add(int unit) { ++pushes_[unit]; }
  // Called at a commit or a discard.
  void Clear() { pushes_.assign(pushes_.size(), 0); }

 private:
  const ModelSpec& spec_;
  std::vector<int> pushes_;  // by unit
};

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_STEP_PUSHES_H_
