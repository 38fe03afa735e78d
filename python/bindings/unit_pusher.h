// Pushes a unit's gradients out of a caller's tensors, by one call for each push.
#ifndef PARAMSHARD_PYTHON_BINDINGS_UNIT_PUSHER_H_
#define PARAMSHARD_PYTHON_BINDINGS_UNIT_PUSHER_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/client.h"
#include "python/bindings/shared_model.h"
#include "python/bindings/streams.h"

namespace paramshard::python {

class PyUnitPusher {
 public:
  // Objects of torch that tensors are compared with.
  struct Torch {
    nanobind::object float32;
    nanobind::object bfloat16;
    nanobind::object strided;
  };

  // Throws for other parameters than the unit's.
  PyUnitPusher(std::shared_ptr<SharedModel> model, std::string unit, const std::vector<std::string>& parameters,
               Torch torch);

  // See BindUnitPusher. With the interpreter's lock, which it releases while it works.
  bool Push(const nanobind::list& gradients, std::optional<StreamAddress> stream) const;

 private:
  struct Parameter {
    size_t index;  // in the unit
    int64_t elements;
  };

  // Returns nullopt for a tensor whose memory alone is not its values, or that has another type.
  std::optional<ConstGradient> ValuesOf(const Parameter& parameter, nanobind::handle gradient) const;

  const std::shared_ptr<SharedModel> model_;
  const std::string unit_;
  const Torch torch_;
  std::vector<Parameter> parameters_;  // in the order of the caller's gradients
};

void BindUnitPusher(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_UNIT_PUSHER_H_
