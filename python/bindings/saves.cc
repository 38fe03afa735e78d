// Saves and restores.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "python/bindings/calls.h"
#include "python/bindings/client.h"
#include "python/bindings/names.h"
#include "python/bindings/types.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

SaveRecord Save(const PyClient& self, const std::string& model, bool wait) {
  const std::shared_ptr<Client> client = self.Get();
  return Take(Unlocked([&] { return client->Save(model, {.wait = wait}); }));
}

std::vector<SaveRecord> Saves(const PyClient& self, const std::optional<std::string>& model) {
  if (model == "") Raise(absl::InvalidArgumentError("saves: want a model's name or None, got an empty name"));
  const std::shared_ptr<Client> client = self.Get();
  return Take(Unlocked([&] { return client->Saves(model.value_or("")); }));
}

RestoreSummary Restore(const PyClient& self, const std::string& model, Argument<named::Checkpoint> checkpoint_object,
                       bool convert_moments) {
  const std::string checkpoint = CheckpointOf(checkpoint_object);
  const std::shared_ptr<Client> client = self.Get();
  return Take(Unlocked([&] { return client->Restore(model, checkpoint, {.convert_moments = convert_moments}); }));
}

std::optional<std::string> PathOf(const SaveRecord& record) {
  if (record.path.empty()) return std::nullopt;
  return record.path;
}

Result<named::OptionalError> ErrorOfSave(const SaveRecord& record) {
  return record.error.ok() ? nb::none() : ErrorOf(record.error);
}

template <typename Record>
auto Seconds(absl::Duration Record::*member) {
  return [member](const Record& record) { return absl::ToDoubleSeconds(record.*member); };
}

std::string SaveText(const SaveRecord& record) {
  std::string text =
      absl::StrFormat("<paramshard.SaveRecord %d of step %d: %s", record.number, record.step, NameOf(record.state));
  if (!record.path.empty()) absl::StrAppend(&text, " ", record.path);
  if (!record.error.ok()) absl::StrAppend(&text, ": ", record.error.message());
  return text + ">";
}

void BindSaveRecord(nb::module_& module) {
  nb::class_<SaveRecord>(module, "SaveRecord", "State of a save.")
      .def_ro("model", &SaveRecord::model)
      .def_ro("number", &SaveRecord::number, "Counts the saves of the model since it was opened.")
      .def_prop_ro(
          "state", [](const SaveRecord& self) { return NameOf(self.state); },
          "waiting, copying or writing; then published, abandoned (there is no checkpoint), unknown (it exists, but "
          "may be lost in a power failure), skipped (another save was in progress), or "
          "already_saved (the state has a checkpoint already, at `path`).")
      .def_prop_ro(
          "reason", [](const SaveRecord& self) { return NameOf(self.reason); },
          "Cause of the save: commits or time (--save-every), trainer (`Model.commit`), call, or drain.")
      .def_prop_ro("over", &SaveRecord::is_over, "True once the save has ended.")
      .def_prop_ro("saved", &SaveRecord::is_saved, "True if there is a checkpoint of the state that can be relied on.")
      .def_ro("step", &SaveRecord::step, "The commit number.")
      .def_ro("history_id", &SaveRecord::history_id, "History in which the step counts.")
      .def_prop_ro("path", &PathOf, "Path of the checkpoint on the daemon's machine; None if there is none.")
      .def_ro("size_bytes", &SaveRecord::size_bytes, "0 until the state is copied.")
      .def_ro("written_bytes", &SaveRecord::written_bytes, "Bytes written so far.")
      .def_prop_ro(
          "begun_at", [](const SaveRecord& self) { return absl::ToDoubleSeconds(self.begun_at - absl::UnixEpoch()); },
          "Seconds since 1970, as `time.time`.")
      .def_prop_ro("seconds", Seconds(&SaveRecord::took), "Duration of the save, until now or until its end.")
      .def_prop_ro("copy_seconds", Seconds(&SaveRecord::copy), "Duration of the copy of the state.")
      .def_prop_ro("stall_seconds", Seconds(&SaveRecord::stall), "Time for which a step has waited for the copy.")
      .def_prop_ro("error", &ErrorOfSave,
                   "The exception of paramshard.errors if there is no checkpoint to rely on; None if nothing is "
                   "wrong.")
      .def("__repr__", &SaveText);
}

void BindRestoreSummary(nb::module_& module) {
  nb::class_<RestoreSummary>(module, "RestoreSummary", "Result of a restore.")
      .def_ro("path", &RestoreSummary::path, "Path of the checkpoint's folder on the daemon's machine.")
      .def_ro("step", &RestoreSummary::step, "The commit number that training goes on from.")
      .def_ro("version", &RestoreSummary::version, "Number of commits that were applied.")
      .def_ro("history_id", &RestoreSummary::history_id, "Id of the new history.")
      .def_ro("parent_history_id", &RestoreSummary::parent_history_id, "Id of the saved history.")
      .def_ro("saved_world_size", &RestoreSummary::saved_world_size, "Size of the world that saved it.")
      .def_ro("saved_shard_size", &RestoreSummary::saved_shard_size)
      .def_ro("size_bytes", &RestoreSummary::size_bytes, "Bytes of the checkpoint's files.")
      .def_prop_ro("seconds", Seconds(&RestoreSummary::took))
      .def("__repr__", [](const RestoreSummary& self) {
        return absl::StrFormat("<paramshard.RestoreSummary step %d of %s>", self.step, self.path);
      });
}

}  // namespace

void BindSaves(nb::module_& module, nb::class_<PyClient>& client) {
  BindSaveRecord(module);
  BindRestoreSummary(module);
  client
      .def("save", &Save, nb::arg("model"), nb::kw_only(), nb::arg("wait") = true,
           "Saves the state of the last commit as a checkpoint in the daemon's --save-dir, while training goes on. "
           "Without `wait` it returns as soon as the save has begun. Ctrl-C ends the wait, not the save. A save that "
           "fails raises nothing: check `SaveRecord.saved`. FailedPreconditionError without --save-dir, and "
           "at other daemons than node 0; UnavailableError while a save of the model is in progress; NotFoundError.")
      .def("saves", &Saves, nb::arg("model") = nb::none(),
           "Returns recent saves, including saves in progress, the oldest first; None: of all models. NotFoundError.")
      .def("restore", &Restore, nb::arg("model"), nb::arg("checkpoint") = "latest", nb::kw_only(),
           nb::arg("convert_moments") = false,
           "Replaces the whole state of a model with a checkpoint's: \"latest\", a step, or a checkpoint's name in the "
           "daemon's --save-dir; or the path of a checkpoint's folder on the daemon's machine. `convert_moments` "
           "converts moments that are saved in another type, which loses bits. Ctrl-C ends the wait, not the restore. "
           "FailedPreconditionError while a trainer is attached (names rank and pid), without --save-dir, and at other "
           "daemons than node 0; NotFoundError (lists the checkpoints); InvalidArgumentError for a checkpoint of "
           "another model; DataLossError if it is damaged.");
}

}  // namespace paramshard::python
