// Plans of Python: where a snapshot's parameters go in the caller's arrays.
#ifndef PARAMSHARD_PYTHON_BINDINGS_PLAN_H_
#define PARAMSHARD_PYTHON_BINDINGS_PLAN_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "client/plan.h"
#include "python/bindings/arrays.h"

namespace paramshard::python {

// Keeps the arrays. Immutable.
class PyPlan {
 public:
  using Arrays = std::vector<WritableAnywhere>;
  PyPlan(Plan plan, Arrays arrays) : plan_(std::move(plan)), arrays_(std::move(arrays)) {}

  const Plan& plan() const { return plan_; }

 private:
  Plan plan_;
  Arrays arrays_;
};

// Returns the plan of whole parameters: `outputs` maps names to arrays of decoded values, else of codes, or tuples of
// codes and scales. Throws for what is no such mapping; errors of `find` and of Plan::Create, which begin with `call`.
PyPlan PlanOfParameters(absl::string_view call, absl::FunctionRef<const ReadParameter&(const std::string&)> find,
                        nanobind::handle outputs, bool decoded);

// Returns the content that is named: float32, bfloat16, float16, codes, scales or amax; null for others.
std::optional<BoxContent> ContentNamed(absl::string_view name);

void BindPlan(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_PLAN_H_
