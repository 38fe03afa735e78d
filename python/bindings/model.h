// Model as a class of Python.
#ifndef PARAMSHARD_PYTHON_BINDINGS_MODEL_H_
#define PARAMSHARD_PYTHON_BINDINGS_MODEL_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "client/client.h"
#include "python/bindings/shared_model.h"

namespace paramshard::python {

class PyModel {
 public:
  explicit PyModel(Model model) : shared_(SharedModel::Create(std::move(model))) {}
  const std::shared_ptr<SharedModel>& shared() const { return shared_; }

 private:
  std::shared_ptr<SharedModel> shared_;
};

void BindModel(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_MODEL_H_
