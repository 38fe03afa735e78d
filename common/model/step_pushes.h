// The units that have been pushed since the last commit.
#ifndef PARAMSHARD_COMMON_MODEL_STEP_PUSHES_H_
#define PARAMSHARD_COMMON_MODEL_STEP_PUSHES_H_

#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"

namespace paramshard {

// A BF16 accumulator is rounded with each push, so models with BF16 accumulators accept one push of a unit between two
// commits. The client checks before it sends a push, the daemon when it receives it.
class StepPushes {
 public:
  // `spec` outlives it.
  explicit StepPushes(const ModelSpec& spec) : spec_(spec), pushed_(spec.units.size(), false) {}

  bool Has(int unit) const { return pushed_[unit]; }
  // FAILED_PRECONDITION if the unit has been pushed and the model accepts only one push.
  absl::Status Check(int unit) const;
  void Add(int unit) { pushed_[unit] = true; }
  // Called at a commit or a discard.
  void Clear() { pushed_.assign(pushed_.size(), false); }

 private:
  const ModelSpec& spec_;
  std::vector<bool> pushed_;  // by unit
};

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_STEP_PUSHES_H_
