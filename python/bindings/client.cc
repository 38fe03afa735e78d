#include "python/bindings/client.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "python/bindings/calls.h"
#include "python/bindings/model.h"
#include "python/bindings/names.h"
#include "python/bindings/spec.h"
#include "python/bindings/types.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

// Logs a wait by Python's logging, which prints warnings unless the program has configured it.
void LogWait(absl::string_view text) {
  Locked([&] {
    try {
      nb::module_::import_("logging").attr("getLogger")("paramshard").attr("warning")("%s", std::string(text));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("paramshard: a log message");
    }
  });
}

void Connect(PyClient* self, int rank, const std::optional<std::string>& socket_dir,
             const std::optional<std::string>& address, const std::optional<std::string>& tls_cert,
             const std::optional<std::string>& tls_key, const std::optional<std::string>& tls_ca,
             const std::vector<std::string>& tls_roles, double connect_timeout, double attach_timeout,
             double restart_timeout, bool take_over, bool prefetch, bool accept_rollback) {
  new (self) PyClient({.rank = rank,
                       .socket_dir = socket_dir.value_or(""),
                       .address = address.value_or(""),
                       .tls_cert = tls_cert.value_or(""),
                       .tls_key = tls_key.value_or(""),
                       .tls_ca = tls_ca.value_or(""),
                       .tls_roles = tls_roles,
                       .connect_timeout = absl::Seconds(connect_timeout),
                       .attach_timeout = absl::Seconds(attach_timeout),
                       .take_over = take_over,
                       .prefetch = prefetch,
                       .accept_rollback = accept_rollback,
                       .restart_timeout = absl::Seconds(restart_timeout),
                       .on_wait = &LogWait,
                       .interrupted = &RunSignalHandlers});
}

CreationOptions CreationOf(nb::handle restore, bool convert_moments) {
  return {.restore = restore.is_none() ? "" : CheckpointOf(restore), .convert_moments = convert_moments};
}

void BindCreatedModel(nb::module_& module) {
  nb::class_<CreatedModel>(module, "CreatedModel", "Result of create_model.")
      .def_ro("created", &CreatedModel::created, "True if no equal model existed.")
      .def_prop_ro(
          "origin", [](const CreatedModel& self) { return NameOf(self.origin); },
          "Where its values come from: initial, importing, imported, restored, trained or lost.")
      .def_ro("commit_number", &CreatedModel::commit_number)
      .def_ro("same_run", &CreatedModel::same_run,
              "True if a creation or an import of the same `run` brought its first values.")
      .def("__repr__", [](const CreatedModel& self) {
        return absl::StrFormat("<paramshard.CreatedModel %s: %s, commit %d>", self.created ? "created" : "found",
                               NameOf(self.origin), self.commit_number);
      });
}

PyModel OpenModel(const PyClient& self, Argument<named::Spec> spec_object, Argument<named::Checkpoint> restore,
                  bool convert_moments, bool takes_any_seed) {
  const ModelSpec spec = SpecFromPython(spec_object);
  CreationOptions options = CreationOf(restore, convert_moments);
  options.takes_any_seed = takes_any_seed;
  const std::shared_ptr<Client> client = self.Get();
  return PyModel(Take(Unlocked([&] { return client->OpenModel(spec, options); })));
}

CreatedModel CreateModel(const PyClient& self, Argument<named::Spec> spec_object, Argument<named::Checkpoint> restore,
                         bool convert_moments, bool values_follow, bool all_values_follow, bool takes_any_seed,
                         const std::string& run) {
  const ModelSpec spec = SpecFromPython(spec_object);
  CreationOptions options = CreationOf(restore, convert_moments);
  options.values_follow = values_follow;
  options.all_values_follow = all_values_follow;
  options.takes_any_seed = takes_any_seed;
  options.run = run;
  const std::shared_ptr<Client> client = self.Get();
  return Take(Unlocked([&] { return client->CreateModel(spec, options); }));
}

void CheckSpec(Argument<named::Spec> spec) { Check(Client::CheckSpec(SpecFromPython(spec))); }

void DeleteModel(const PyClient& self, const std::string& model) {
  const std::shared_ptr<Client> client = self.Get();
  Check(Unlocked([&] { return client->DeleteModel(model); }));
}

void BindModels(nb::class_<PyClient>& client) {
  client
      .def(
          "open_model", &OpenModel, nb::arg("spec"), nb::kw_only(), nb::arg("restore") = nb::none(),
          nb::arg("convert_moments") = false, nb::arg("takes_any_seed") = false,
          "Creates the model or joins it, attaches, and waits until every rank is attached; waits also for a daemon "
          "that restarts. `restore` names the checkpoint for a model that is created: \"latest\", a step, a "
          "checkpoint's name in the daemon's --save-dir, an absolute path, or \"none\"; None: as the daemon's "
          "--restore says. FailedPreconditionError names the GPU that serves the rank if this process does not see it.")
      .def("create_model", &CreateModel, nb::arg("spec"), nb::kw_only(), nb::arg("restore") = nb::none(),
           nb::arg("convert_moments") = false, nb::arg("values_follow") = false, nb::arg("all_values_follow") = false,
           nb::arg("takes_any_seed") = false, nb::arg("run") = "",
           "Creates the model or joins it, without attaching: before an import. `restore` as in open_model, or "
           "\"none\": initial values, whatever the daemon's --restore says. `values_follow`: an import follows, and "
           "until it ends a new model is \"importing\". `all_values_follow`: the import replaces every initial value, "
           "so that the spec's do not count. `takes_any_seed`: an existing model may have another seed than the spec. "
           "`run` names the job, in all of its ranks and restarts. The answer says where the values of the model come "
           "from.")
      .def_static("check_spec", &CheckSpec, nb::arg("spec"),
                  "Checks a spec by the rules of every daemon, without calling one. InvalidArgumentError as for "
                  "create_model.")
      .def("delete_model", &DeleteModel, nb::arg("model"),
           "Deletes a model without attached trainers. NotFoundError; FailedPreconditionError names an attached "
           "trainer.");
}

}  // namespace

PyClient::PyClient(const Client::Options& options)
    : client_(std::make_shared<Client>(Take(Unlocked([&] { return Client::Connect(options); })))) {}

std::shared_ptr<Client> PyClient::Get() const {
  if (client_ == nullptr) Raise(absl::FailedPreconditionError("client: client was closed"));
  return client_;
}

std::string CheckpointOf(nb::handle object) {
  if (nb::isinstance<nb::str>(object)) return nb::cast<std::string>(object);
  constexpr absl::string_view kWanted = "checkpoint: want a str, an int (a step) or a path of a str";
  if (nb::isinstance<nb::int_>(object) && !nb::isinstance<nb::bool_>(object)) {
    return std::to_string(As<int64_t>(object, kWanted));
  }
  if (!nb::hasattr(object, "__fspath__")) RaiseType(kWanted, object);
  return As<std::string>(nb::module_::import_("os.path").attr("abspath")(object), kWanted);
}

void BindClient(nb::module_& module) {
  nb::class_<PyClient> client(
      module, "Client",
      "A connection to the daemon of this node. Thread-safe. It outlives the daemon: calls connect anew. A process "
      "that has connected must not go on in a child that it forks: there every call is FailedPreconditionError.");
  client.def("__init__", &Connect, nb::arg("rank") = 0, nb::kw_only(), nb::arg("socket_dir") = nb::none(),
             nb::arg("address") = nb::none(), nb::arg("tls_cert") = nb::none(), nb::arg("tls_key") = nb::none(),
             nb::arg("tls_ca") = nb::none(), nb::arg("tls_roles") = std::vector<std::string>(),
             nb::arg("connect_timeout") = 10.0, nb::arg("attach_timeout") = 600.0, nb::arg("restart_timeout") = 60.0,
             nb::arg("take_over") = false, nb::arg("prefetch") = true, nb::arg("accept_rollback") = false,
             "Connects. `rank` is the rank of the world that this trainer serves. `socket_dir` is the daemon's "
             "directory of sockets; None: $PARAMSHARD_SOCKET_DIR, else $XDG_RUNTIME_DIR/paramshard, else "
             "/tmp/paramshard-<uid>. `address` instead is HOST:PORT of the --listen of a daemon on another machine, "
             "and `tls_cert`, `tls_key` and `tls_ca` are PEM files: the certificate's role limits calls there, and "
             "calls that share memory (open_model, create_model) are refused. Timeouts are in seconds: for connecting; "
             "for other ranks to attach; for a daemon that restarts. `take_over` kills the trainer that holds the "
             "rank. `prefetch` issues gathers ahead in the order of the first step. With `accept_rollback` open_model "
             "goes on by itself if the daemons rolled back to a checkpoint and lost commits that this client has seen "
             "answered; else it raises DataLossError, once. UnavailableError, with the address, if no daemon answers.");
  BindCreatedModel(module);
  BindModels(client);
  BindTransfers(module, client);
  BindSaves(module, client);
  BindDaemon(module, client);
  client.def("close", &PyClient::Close, "Closes the connection. Models of it stay open. Idempotent.")
      .def("__enter__", &Itself<PyClient>)
      .def(
          "__exit__", [](PyClient& self, const nb::args&) { self.Close(); }, kExitSignature);
}

}  // namespace paramshard::python
