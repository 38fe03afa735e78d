// Which units have been pushed since the last commit, and which may be.
#ifndef PARAMSHARD_PROTO_MODEL_STEP_PUSHES_H_
#define PARAMSHARD_PROTO_MODEL_STEP_PUSHES_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/model/model_spec.h"

namespace paramshard {

// A BF16 accumulator is rounded with each push, so models that have them take one push of a unit between two commits.
// The client looks before it sends a push, the daemon when it has come.
class StepPushes {
 public:
  // `spec` outlives it.
  explicit StepPushes(const ModelSpec& spec) : spec_(spec), pushed_(spec.units.size(), false) {}

  bool Has(int unit) const { return pushed_[unit]; }
  // FAILED_PRECONDITION: the unit has been pushed, and the model takes no second push of it.
  absl::Status Check(int unit) const;
  void Add(int unit) { pushed_[unit] = true; }
  // At a commit or a discard.
  void Clear() { pushed_.assign(pushed_.size(), false); }

 private:
  const ModelSpec& spec_;
  std::vector<bool> pushed_;  // by unit
};

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_STEP_PUSHES_H_
