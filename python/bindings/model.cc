#include "python/bindings/model.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "python/bindings/calls.h"
#include "python/bindings/handles.h"
#include "python/bindings/names.h"
#include "python/bindings/spec.h"
#include "python/bindings/streams.h"
#include "python/bindings/types.h"
#include "python/bindings/unit_pusher.h"
#include "python/bindings/unit_reader.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

PyGatheredUnit Gather(const PyModel& self, const std::string& unit, const std::string& phase_name) {
  const Phase phase = Take(Parse<Phase>("phase", phase_name));
  return {self.shared(), Take(self.shared()->WithModel([&](Model& model) { return model.Gather(unit, phase); }))};
}

bool CanGather(const PyModel& self, const std::string& unit, const std::string& phase_name) {
  const Phase phase = Take(Parse<Phase>("phase", phase_name));
  const absl::Status status = self.shared()->WithModel([&](Model& model) { return model.CanGather(unit, phase); });
  if (absl::IsResourceExhausted(status)) return false;
  Check(status);
  return true;
}

PyUnitReader Reader(const PyModel& self, const std::string& unit,
                    const std::vector<PyUnitReader::DecodedTuple>& decoded,
                    const std::vector<PyUnitReader::OperandTuple>& operands) {
  return {self.shared(), unit, decoded, operands};
}

PyUnitPusher Pusher(const PyModel& self, const std::string& unit, const std::vector<std::string>& parameters,
                    const nb::module_& torch) {
  return {self.shared(), unit, parameters, {torch.attr("float32"), torch.attr("bfloat16"), torch.attr("strided")}};
}

PyGradients Gradients(const PyModel& self, const std::string& unit, std::optional<StreamAddress> stream, bool zero) {
  return {self.shared(), Take(self.shared()->WithModel([&](Model& model) {
            return stream.has_value() ? GradientsOn(model, unit, zero, *stream) : model.Gradients(unit);
          }))};
}

// Hyper-parameters by their names.
using GroupDict = nb::typed<nb::dict, nb::str, double>;

GroupHyperparameters GroupOf(const GroupDict& values) {
  GroupHyperparameters group;
  for (const auto& [key, value] : values) {
    const auto name = As<std::string>(key, "commit: want the name of a hyper-parameter");
    const HyperparameterTraits* known = nullptr;
    for (const HyperparameterTraits& traits : kHyperparameters) {
      if (name == traits.name) known = &traits;
    }
    if (known == nullptr) {
      const auto add_name = [](std::string* out, const HyperparameterTraits& traits) { out->append(traits.name); };
      Raise(absl::InvalidArgumentError(absl::StrFormat("commit: groups: want one of %s, got %s",
                                                       absl::StrJoin(kHyperparameters, ", ", add_name), name)));
    }
    group.*known->member = As<float>(value, absl::StrFormat("commit: %s: want a number", name));
  }
  return group;
}

PyPendingCommit Commit(const PyModel& self, float learning_rate, float beta1, float beta2, float epsilon,
                       float weight_decay, float momentum, float dampening,
                       const std::optional<std::vector<GroupDict>>& groups, std::optional<float> max_grad_norm,
                       float gradient_scale, const nb::bytes& client_state, std::optional<int64_t> commit_number,
                       bool save, const nb::bytes& reader_data) {
  CommitOptions options{.learning_rate = learning_rate,
                        .beta1 = beta1,
                        .beta2 = beta2,
                        .epsilon = epsilon,
                        .weight_decay = weight_decay,
                        .momentum = momentum,
                        .dampening = dampening,
                        .max_grad_norm = max_grad_norm,
                        .gradient_scale = gradient_scale,
                        .client_state = std::string(client_state.c_str(), client_state.size()),
                        .commit_number = commit_number,
                        .save = save,
                        .reader_data = std::string(reader_data.c_str(), reader_data.size())};
  if (groups.has_value()) {
    for (const GroupDict& group : *groups) options.groups.push_back(GroupOf(group));
  }
  return {self.shared(), Take(self.shared()->WithModel([&](Model& model) { return model.Commit(options); }))};
}

// A value that a Model knows without the daemon.
template <typename T>
auto Value(T (Model::*member)() const) {
  return [member](const PyModel& self) {
    return Take(
        self.shared()->WithModel([&](Model& model) -> absl::StatusOr<std::decay_t<T>> { return (model.*member)(); }));
  };
}

nb::bytes ClientState(const PyModel& self) {
  const std::string state = Value(&Model::client_state)(self);
  return nb::bytes(state.data(), state.size());
}

Result<named::Spec> Spec(const PyModel& self) { return SpecToPython(Value(&Model::spec)(self)); }

void BindCommands(nb::class_<PyModel>& model) {
  model
      .def("gather", &Gather, nb::arg("unit"), nb::arg("phase") = "forward",
           "Starts gathering a unit, and returns at once. `phase` is forward, backward or both. "
           "ResourceExhaustedError if no slot that fits is free: names the units that hold them, and the field of the "
           "spec that gives more.")
      .def("can_gather", &CanGather, nb::arg("unit"), nb::arg("phase") = "forward",
           "Returns True if such a gather would find a free slot now.")
      .def("reader", &Reader, nb::arg("unit"), nb::arg("decoded"), nb::arg("operands") = nb::list(),
           "Makes a reader, which reads the unit with one call, in phase forward. `decoded`: for each parameter its "
           "name, the type "
           "to decode to, FP32 or BF16, and the place for rows x columns elements of it: the index of a block of "
           "memory, and bytes from its beginning. `operands`: weights as products in 8 bits read them, in "
           "FP8_BLOCK_128X128 or an FP8_TENSOR format; for each its name, True for transposed, the place for the data, "
           "and the address for the scales of its blocks of 128 x 128, with the elements from one row of scales to the "
           "next.")
      .def(
          "pusher", &Pusher, nb::arg("unit"), nb::arg("parameters"), nb::arg("torch"),
          "Makes a pusher, which pushes the unit with one call. `parameters`: the names of all parameters of the unit, "
          "in the order of the gradients that it is given. `torch`: the module.")
      .def(
          "gradients", &Gradients, nb::arg("unit"), nb::arg("stream") = nb::none(), nb::kw_only(),
          nb::arg("zero") = true,
          "Hands out a zeroed gradient slot, waiting for one to drain if none is free. `stream`, the address of a CUDA "
          "stream of `Model.gpu`: that stream waits and zeroes, and this call returns at once; without `zero` every "
          "element must be written of every parameter that is not marked absent. ResourceExhaustedError if all slots "
          "that fit are held, unpushed: names their units.")
      .def("commit", &Commit, nb::kw_only(), nb::arg("learning_rate") = 1e-3, nb::arg("beta1") = 0.9,
           nb::arg("beta2") = 0.999, nb::arg("epsilon") = 1e-8, nb::arg("weight_decay") = 0.0,
           nb::arg("momentum") = 0.0, nb::arg("dampening") = 0.0, nb::arg("groups") = nb::none(),
           nb::arg("max_grad_norm") = nb::none(), nb::arg("gradient_scale") = 1.0,
           nb::arg("client_state").sig("b''") = nb::bytes("", 0), nb::arg("commit_number") = nb::none(),
           nb::arg("save") = false, nb::arg("reader_data").sig("b''") = nb::bytes("", 0),
           "Applies one optimizer step.\n\n"
           "Returns at once, unless three commits are unanswered: then it waits for the oldest.\n\n"
           "Args:\n"
           "    learning_rate, beta1, beta2, epsilon, weight_decay, momentum, dampening: Hyper-parameters of all\n"
           "        parameters; each optimizer reads some of them.\n"
           "    groups: A dict of hyper-parameters for each group of the model, instead of the above.\n"
           "    max_grad_norm: Clips the gradients to this global norm.\n"
           "    gradient_scale: The loss scale that gradients carry.\n"
           "    client_state: At most 64 KiB, which come back after a crash.\n"
           "    commit_number: The number of this commit; by default the next.\n"
           "    save: Saves the state that this commit leaves; the same on all ranks.\n"
           "    reader_data: At most 4096 bytes for readers, as `Snapshot.data` of the version that this commit "
           "leaves;\n"
           "        the same on all ranks: else the epoch ends with FailedPreconditionError.\n\n"
           "Raises:\n"
           "    FailedPreconditionError: A gathered unit, or a gradient slot that is not pushed, is still held.")
      .def(
          "discard",
          [](const PyModel& self) { Check(self.shared()->WithModel([](Model& model) { return model.Discard(); })); },
          "Drops all gradients pushed since the last commit; every rank calls it at the same point.")
      .def(
          "check",
          [](const PyModel& self) { Check(self.shared()->WithModel([](Model& model) { return model.status(); })); },
          "Raises the error that ended the epoch, if it has ended.")
      .def(
          "close", [](const PyModel& self) { Check(self.shared()->Close()); },
          "Detaches after the last command of this rank; handles that are left end. Waits up to 35 seconds for other "
          "ranks to send what this one has sent. Idempotent.")
      .def("__enter__", &Itself<PyModel>)
      .def(
          "__exit__", [](const PyModel& self, const nb::args&) { Check(self.shared()->Close()); }, kExitSignature);
}

void BindValues(nb::class_<PyModel>& model) {
  model.def_prop_ro("commit_number", Value(&Model::commit_number), "The last commit answered before this epoch.")
      .def_prop_ro("version", Value(&Model::version), "Number of commits that were applied before this epoch.")
      .def_prop_ro("client_state", &ClientState, "Client state that this rank sent with that commit.")
      .def_prop_ro("last_result", Value(&Model::last_result), "Answer of that commit, or None.")
      .def_prop_ro("epoch", Value(&Model::epoch))
      .def_prop_ro("rank", Value(&Model::rank))
      .def_prop_ro("world_size", Value(&Model::world_size))
      .def_prop_ro(
          "active_rank", Value(&Model::active_rank),
          "Rank among the ranks of the epoch, by which batches are dealt. The same as `rank`, unless replicas go "
          "on without a lost daemon, whose ranks are left out.")
      .def_prop_ro("active_world_size", Value(&Model::active_world_size), "Number of ranks of the epoch.")
      .def_prop_ro("shard_size", Value(&Model::shard_size))
      .def_prop_ro("gathered_bytes", Value(&Model::gathered_bytes),
                   "Bytes that the gathers of this epoch have brought so far.")
      .def_prop_ro("gpu", Value(&Model::gpu),
                   "This process's index of the GPU whose memory the arrays are in; -1: host memory.")
      .def_prop_ro("spec", &Spec, "The ModelSpec as the daemon has checked it, with every default.");
}

}  // namespace

void BindModel(nb::module_& module) {
  nb::class_<PyModel> model(
      module, "Model",
      "A model that this trainer is attached to, for one epoch: until a trainer leaves. Every rank of the world issues "
      "the same sequence of gather, push, commit and discard. Calls may come from any thread, one at a time. As a "
      "context manager it closes at the end.");
  BindCommands(model);
  BindValues(model);
}

}  // namespace paramshard::python
