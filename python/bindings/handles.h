// Gathered units, gradient slots and pending commits as classes of Python.
#ifndef PARAMSHARD_PYTHON_BINDINGS_HANDLES_H_
#define PARAMSHARD_PYTHON_BINDINGS_HANDLES_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "client/client.h"
#include "python/bindings/shared_model.h"

namespace paramshard::python {

using HeldUnit = Held<GatheredUnit>;
using HeldGradients = Held<UnitGradients>;

class PyGatheredUnit {
 public:
  PyGatheredUnit(std::shared_ptr<SharedModel> model, GatheredUnit unit)
      : held_(std::make_shared<HeldUnit>(std::move(model), std::move(unit))) {}
  const std::shared_ptr<HeldUnit>& held() const { return held_; }

 private:
  std::shared_ptr<HeldUnit> held_;
};

class PyGradients {
 public:
  PyGradients(std::shared_ptr<SharedModel> model, UnitGradients gradients)
      : held_(std::make_unique<HeldGradients>(std::move(model), std::move(gradients))) {}
  HeldGradients& held() const { return *held_; }

 private:
  std::unique_ptr<HeldGradients> held_;
};

class PyPendingCommit {
 public:
  PyPendingCommit(std::shared_ptr<SharedModel> model, PendingCommit commit)
      : model_(std::move(model)), commit_(std::move(commit)) {}
  const PendingCommit& commit() const { return commit_; }
  StepResult Wait();

 private:
  std::shared_ptr<SharedModel> model_;
  PendingCommit commit_;
};

void BindHandles(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_HANDLES_H_
