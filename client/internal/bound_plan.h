// A plan's boxes, and where a session of the daemon has them.
#ifndef PARAMSHARD_CLIENT_INTERNAL_BOUND_PLAN_H_
#define PARAMSHARD_CLIENT_INTERNAL_BOUND_PLAN_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/box_copy.h"
#include "client/internal/reader_session.h"
#include "client/plan.h"

namespace paramshard::internal {

// A box within one plane of a session, and the box of the plan that it belongs to.
struct PlannedCopy {
  const Box* box = nullptr;
  BoxCopy copy = {};
};

// Appends a checked box of a session's parameter in a generation, cut where ranks are; none of a box without elements.
void AppendCopies(const ReaderSession& session, uint64_t generation, int parameter, const Box& box,
                  std::vector<PlannedCopy>& copies);

// Thread-safe.
class BoundPlan {
 public:
  // Checked boxes, the parameter of each, and the GPU of their memory; -1: the host.
  BoundPlan(std::vector<Box> boxes, std::vector<ReadParameter> parameters, int gpu)
      : boxes_(std::move(boxes)), parameters_(std::move(parameters)), gpu_(gpu) {}

  const std::vector<Box>& boxes() const { return boxes_; }
  int gpu() const { return gpu_; }

  // Returns the copies that make the plan in a generation of a session, valid as long as the plan and the session.
  // Computed when another session comes: a restarted daemon has its planes elsewhere. FAILED_PRECONDITION where the model
  // has other parameters than the plan was made for.
  using Copies = std::shared_ptr<const std::vector<PlannedCopy>>;
  absl::StatusOr<Copies> CopiesIn(const std::shared_ptr<const ReaderSession>& session, uint64_t generation) const;

 private:
  // Constant after construction.
  const std::vector<Box> boxes_;
  const std::vector<ReadParameter> parameters_;
  const int gpu_;

  mutable absl::Mutex mu_;
  mutable std::weak_ptr<const ReaderSession> session_ ABSL_GUARDED_BY(mu_);
  mutable std::vector<Copies> copies_ ABSL_GUARDED_BY(mu_);  // in each copy of session_'s planes; null: not computed
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_BOUND_PLAN_H_
