// Information on the daemon and its models.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "python/bindings/calls.h"
#include "python/bindings/client.h"
#include "python/bindings/names.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

DaemonInfo GetDaemonInfo(const PyClient& self) {
  const std::shared_ptr<Client> client = self.Get();
  return Take(Unlocked([&] { return client->GetDaemonInfo(); }));
}

std::vector<ModelSummary> Models(const PyClient& self) {
  const std::shared_ptr<Client> client = self.Get();
  return Take(Unlocked([&] { return client->Models(); }));
}

std::vector<MemoryUse> GetMemory(const PyClient& self) {
  const std::shared_ptr<Client> client = self.Get();
  return Take(Unlocked([&] { return client->GetMemory(); }));
}

void BindDaemonInfo(nb::module_& module) {
  nb::class_<DaemonInfo>(module, "DaemonInfo", "A daemon, and its place in the world.")
      .def_ro("version", &DaemonInfo::version)
      .def_ro("pid", &DaemonInfo::pid, "The process that serves, not its keeper.")
      .def_ro("devices", &DaemonInfo::devices, "One for each rank: \"cpu:0\", ...")
      .def_ro("first_rank", &DaemonInfo::first_rank,
              "First rank that it serves; it serves as many ranks as it has devices.")
      .def_ro("world_size", &DaemonInfo::world_size)
      .def_ro("node", &DaemonInfo::node, "Its number among the daemons of the world.")
      .def_ro("nodes", &DaemonInfo::nodes, "Number of daemons of the world.")
      .def_prop_ro(
          "started_at",
          [](const DaemonInfo& self) { return absl::ToDoubleSeconds(self.started_at - absl::UnixEpoch()); },
          "Seconds since 1970, as `time.time`.")
      .def("__repr__", [](const DaemonInfo& self) {
        return absl::StrFormat("<paramshard.DaemonInfo %s, node %d of %d, ranks %d..%d of %d>", self.version, self.node,
                               self.nodes, self.first_rank, self.first_rank + static_cast<int>(self.devices.size()) - 1,
                               self.world_size);
      });
}

void BindModelSummary(nb::module_& module) {
  nb::class_<ModelSummary>(module, "ModelSummary", "A model as the daemon knows it.")
      .def_ro("name", &ModelSummary::name)
      .def_ro("parameter_count", &ModelSummary::parameter_count)
      .def_ro("element_count", &ModelSummary::element_count)
      .def_ro("shard_size", &ModelSummary::shard_size)
      .def_ro("world_size", &ModelSummary::world_size)
      .def_ro("version", &ModelSummary::version, "Counts the commits that were applied.")
      .def_ro("commit_number", &ModelSummary::commit_number)
      .def_ro("history_id", &ModelSummary::history_id, "History in which the numbers count.")
      .def_ro("epoch", &ModelSummary::epoch, "The last epoch that has started; None before the first.")
      .def_ro("running", &ModelSummary::running, "True until that epoch has ended.")
      .def_ro("attached_ranks", &ModelSummary::attached_ranks, "Ranks of this daemon that have a trainer.")
      .def_prop_ro(
          "unusable",
          [](const ModelSummary& self) -> std::optional<std::string> {
            if (self.unusable.empty()) return std::nullopt;
            return self.unusable;
          },
          "Why no trainer can attach; None while the model can be trained.")
      .def_prop_ro(
          "origin", [](const ModelSummary& self) { return NameOf(self.origin); },
          "Where its values come from: initial, importing, imported, restored, trained or lost.")
      .def("__repr__", [](const ModelSummary& self) {
        return absl::StrFormat("<paramshard.ModelSummary %s: %s, commit %d, version %d, %d ranks attached>", self.name,
                               NameOf(self.origin), self.commit_number, self.version, self.attached_ranks);
      });
}

void BindMemoryUse(nb::module_& module) {
  nb::class_<MemoryUse>(module, "MemoryUse", "Memory of the daemon on one device, for one model and class.")
      .def_ro("device", &MemoryUse::device, "Empty: host memory that all devices share.")
      .def_ro("model", &MemoryUse::model)
      .def_ro(
          "memory_class", &MemoryUse::memory_class,
          "master, exp_avg, exp_avg_sq, gradients, keeper_scratch, muon_scratch, planes, gather_slots, gradient_slots, "
          "landing_area, control_page, scratch, histories, save_buffers or plane_copies.")
      .def_ro("size_bytes", &MemoryUse::size_bytes)
      .def("__repr__", [](const MemoryUse& self) {
        return absl::StrFormat("<paramshard.MemoryUse %s of %s: %d bytes in %s>", self.memory_class, self.model,
                               self.size_bytes, self.device.empty() ? "host memory" : self.device);
      });
}

}  // namespace

void BindDaemon(nb::module_& module, nb::class_<PyClient>& client) {
  BindDaemonInfo(module);
  BindModelSummary(module);
  BindMemoryUse(module);
  client.def("daemon_info", &GetDaemonInfo, "Returns version, devices and ranks of the daemon, and the world's size.")
      .def("memory", &GetMemory, "Returns the bytes that the daemon holds, by device, model and class.")
      .def("models", &Models,
           "Returns the daemon's models by name, also models whose state was lost with an earlier server: these have "
           "only `name`, `unusable` and `origin`.");
}

}  // namespace paramshard::python
