// Plans of Python: where a snapshot's parameters go in the caller's arrays.
#ifndef PARAMSHARD_PYTHON_BINDINGS_PLAN_H_
#define PARAMSHARD_PYTHON_BINDINGS_PLAN_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/plan.h"
#include "python/bindings/arrays.h"

namespace paramshard::python {

// Storages of torch tensors. A program may resize them, and an array of DLPack then shows memory that was freed.
class TensorStorages {
 public:
  // Does nothing for an array that is no tensor of torch.
  void Add(absl::string_view name, nanobind::handle array);
  // FAILED_PRECONDITION names the first that has other memory than when it was added.
  absl::Status CheckPresent() const;

 private:
  struct Place {
    uintptr_t address = 0;
    uint64_t bytes = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct Storage {
    std::string name;  // of an output
    nanobind::object storage;
    Place place;
  };
  static Place PlaceOf(nanobind::handle storage);

  std::vector<Storage> all_;
};

// Keeps the arrays. Immutable.
class PyPlan {
 public:
  using Arrays = std::vector<WritableAnywhere>;
  PyPlan(Plan plan, Arrays arrays, TensorStorages storages = {})
      : plan_(std::move(plan)), arrays_(std::move(arrays)), storages_(std::move(storages)) {}

  const Plan& plan() const { return plan_; }
  // FAILED_PRECONDITION where memory of the arrays was freed.
  absl::Status CheckMemory() const { return storages_.CheckPresent(); }

 private:
  Plan plan_;
  Arrays arrays_;
  TensorStorages storages_;
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
