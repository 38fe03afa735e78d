#include "client/client.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <grpcpp/client_context.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/admin_answers.h"
#include "client/internal/attach.h"
#include "client/internal/connection.h"
#include "client/internal/deadline.h"
#include "client/internal/epoch_layout.h"
#include "client/internal/interruption.h"
#include "client/internal/owner_process.h"
#include "client/internal/restart_wait.h"
#include "client/internal/session.h"
#include "client/internal/sockets.h"
#include "client/internal/stream_call.h"
#include "client/internal/tensor_transfer.h"
#include "client/internal/unary_call.h"
#include "common/model/limits.h"
#include "common/model/model_spec_proto.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "paramshard/v1/trainer.grpc.pb.h"

namespace paramshard {

using internal::Connection;
using Stub = v1::TrainerService::Stub;
using AdminStub = v1::AdminService::Stub;

// Shared between threads.
class Client::Impl {
 public:
  Impl(Options options, std::unique_ptr<internal::Daemon> daemon)
      : options_(std::move(options)), interruption_(options_.interrupted), daemon_(std::move(daemon)) {}

  const Options& options() const { return options_; }
  // FAILED_PRECONDITION: the daemon is on another machine, with which no memory is shared.
  absl::StatusOr<internal::SocketPaths> SocketsFor(absl::string_view operation) const;

  // Opens the connection for one call.
  absl::StatusOr<std::shared_ptr<Connection>> Connected();

  // Makes one attempt.
  struct Opened {
    std::shared_ptr<internal::Session> session;
    int64_t deletion = 0;  // v1::Model
  };
  absl::StatusOr<Opened> OpenModel(const ModelSpec& spec, const CreationOptions& options, internal::RestartWait& wait);
  // Unmaps the memory of the model's ended epochs.
  void UnmapEnded(absl::string_view model);
  // DATA_LOSS, once: the session's model is at an earlier commit than this client knows to be answered. From then on
  // the session's commit counts. Nothing is known of a model that this client has deleted, restored or imported into.
  // ABORTED, once: another client has deleted the model since, as `deletion` says (v1::Model).
  absl::Status CheckNotBack(const internal::Session& session, int64_t deletion);
  void ForgetAnswered(absl::string_view model);

  absl::StatusOr<CreatedModel> CreateModel(const ModelSpec& spec, const CreationOptions& options);
  absl::StatusOr<v1::CreateModelResponse> CreateModel(const Connection& connection, const ModelSpec& spec,
                                                      const CreationOptions& options);
  absl::StatusOr<v1::Model> GetModel(const Connection& connection, absl::string_view model);
  absl::Status DeleteModel(absl::string_view model);

  absl::StatusOr<SaveRecord> Save(absl::string_view model, const SaveOptions& options);
  absl::StatusOr<RestoreSummary> Restore(absl::string_view model, absl::string_view checkpoint,
                                         const RestoreOptions& options);
  // Makes a call that the daemon answers at once.
  template <typename Request, typename Response>
  absl::Status Ask(absl::string_view name, internal::PreparedRpc<AdminStub, Request, Response> rpc,
                   const Request& request, Response& response);

 private:
  // `name` is for errors. Initial values of a large model take time; the attach timeout is how long the caller would
  // wait for a session.
  template <typename Service, typename Request, typename Response>
  absl::Status Call(const Connection& connection, Service& stub, absl::string_view name,
                    internal::PreparedRpc<Service, Request, Response> rpc, const Request& request,
                    Response& response) const;

  const internal::OwnerProcess owner_;
  const Options options_;
  const internal::Interruption interruption_;
  const std::unique_ptr<internal::Daemon> daemon_;

  absl::Mutex mu_;
  std::vector<std::weak_ptr<internal::Session>> sessions_ ABSL_GUARDED_BY(mu_);
  // Known of a model since its last session.
  struct Known {
    std::shared_ptr<const std::atomic<int64_t>> answered;  // Session::answered
    int64_t deletion = 0;                                  // v1::Model
  };
  std::map<std::string, Known, std::less<>> known_ ABSL_GUARDED_BY(mu_);  // by model
};

absl::StatusOr<internal::SocketPaths> Client::Impl::SocketsFor(absl::string_view operation) const {
  if (const auto* const paths = std::get_if<internal::SocketPaths>(&daemon_->place())) return *paths;
  return absl::FailedPreconditionError(absl::StrCat(
      operation, ": want a daemon on this machine, got the one at ", options_.address,
      ": trainers share memory with the daemon beside them; start one of the same world here and connect by its "
      "socket_dir, without address"));
}

absl::StatusOr<std::shared_ptr<Connection>> Client::Impl::Connected() {
  RETURN_IF_ERROR(owner_.Check("client"));
  return daemon_->Connected();
}

template <typename Service, typename Request, typename Response>
absl::Status Client::Impl::Call(const Connection& connection, Service& stub, absl::string_view name,
                                internal::PreparedRpc<Service, Request, Response> rpc, const Request& request,
                                Response& response) const {
  grpc::ClientContext context;
  connection.Authenticate(context);
  const internal::Deadline deadline = internal::Deadline::After(options_.attach_timeout);
  context.set_deadline(deadline.ToGrpc());
  absl::Status answer = internal::CallUnary(stub, rpc, context, request, response, interruption_);
  // gRPC's message has neither the call's name nor its time limit.
  if (absl::IsDeadlineExceeded(answer) && deadline.Passed()) {
    answer = absl::DeadlineExceededError(absl::StrCat(name, ": timed out after attach_timeout (",
                                                      absl::FormatDuration(options_.attach_timeout),
                                                      "): ", answer.message()));
  }
  return connection.Explain(name, std::move(answer));
}

absl::StatusOr<Client::Impl::Opened> Client::Impl::OpenModel(const ModelSpec& spec, const CreationOptions& options,
                                                             internal::RestartWait& wait) {
  ASSIGN_OR_RETURN(const internal::SocketPaths paths, SocketsFor(absl::StrCat("open model ", spec.name)));
  // One connection for both calls: the next server may have another model.
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connected());
  ASSIGN_OR_RETURN(const v1::CreateModelResponse created, CreateModel(*connection, spec, options));
  wait.Reached();
  absl::StatusOr<std::shared_ptr<internal::Session>> session =
      internal::Attach(connection->channel(), paths, options_, spec.name);
  if (!session.ok()) return connection->Explain(absl::StrCat("attach ", spec.name), session.status());
  const absl::MutexLock lock(&mu_);
  sessions_.push_back(*session);
  return Opened{.session = *std::move(session), .deletion = created.model().deletion()};
}

void Client::Impl::UnmapEnded(absl::string_view model) {
  std::vector<std::shared_ptr<internal::Session>> of_model;
  {
    const absl::MutexLock lock(&mu_);
    sessions_.erase(
        std::remove_if(sessions_.begin(), sessions_.end(), [](const auto& session) { return session.expired(); }),
        sessions_.end());
    for (const std::weak_ptr<internal::Session>& kept : sessions_) {
      std::shared_ptr<internal::Session> session = kept.lock();
      if (session != nullptr && session->spec().name == model) of_model.push_back(std::move(session));
    }
  }
  for (const std::shared_ptr<internal::Session>& session : of_model) session->UnmapEnded();
}

absl::Status Client::Impl::CheckNotBack(const internal::Session& session, int64_t deletion) {
  const std::string& model = session.spec().name;
  const int64_t now = session.started().commit_number();
  int64_t known = 0;
  bool is_deleted = false;
  {
    const absl::MutexLock lock(&mu_);
    Known& last = known_[model];
    if (last.answered != nullptr) known = last.answered->load();
    is_deleted = known > 0 && deletion > last.deletion;
    last = {.answered = session.answered(), .deletion = deletion};
  }
  if (options_.accept_rollback) return absl::OkStatus();
  if (is_deleted) {
    return absl::AbortedError(absl::StrCat("open model ", model, ": another client deleted it after commit ", known,
                                           ", and it was created again; call OpenModel again to go on from commit ",
                                           now, " of the new one"));
  }
  if (known <= now) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "open model ", model, ": rolled back from commit ", known, ", which was answered, to commit ", now,
      ": the daemons rolled back to a checkpoint, or lost all; call OpenModel again to go on from commit_number()"));
}

void Client::Impl::ForgetAnswered(absl::string_view model) {
  const absl::MutexLock lock(&mu_);
  if (const auto found = known_.find(model); found != known_.end()) known_.erase(found);
}

absl::StatusOr<CreatedModel> Client::Impl::CreateModel(const ModelSpec& spec, const CreationOptions& options) {
  RETURN_IF_ERROR(SocketsFor(absl::StrCat("create model ", spec.name)).status());
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connected());
  ASSIGN_OR_RETURN(const v1::CreateModelResponse created, CreateModel(*connection, spec, options));
  return CreatedModel{.created = created.created(),
                      .origin = internal::OriginFromProto(created.model().origin()),
                      .commit_number = created.model().commit_number(),
                      .same_run = created.same_run()};
}

absl::StatusOr<v1::CreateModelResponse> Client::Impl::CreateModel(const Connection& connection, const ModelSpec& spec,
                                                                  const CreationOptions& options) {
  v1::CreateModelRequest request;
  *request.mutable_spec() = ModelSpecToProto(spec);
  if (!options.restore.empty()) {
    request.mutable_restore()->set_checkpoint(options.restore);
    request.mutable_restore()->set_convert_moments(options.convert_moments);
  }
  request.set_values_follow(options.values_follow);
  request.set_all_values_follow(options.all_values_follow);
  request.set_takes_any_seed(options.takes_any_seed);
  request.set_run(options.run);
  // gRPC rejects larger messages without naming the model.
  if (const size_t bytes = request.ByteSizeLong(); bytes > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("create model ", spec.name, ": want a spec of at most ",
                                                   kMaxMessageBytes, " bytes, got ", bytes,
                                                   ": give it fewer parameters, or shorter names"));
  }
  v1::CreateModelResponse response;
  RETURN_IF_ERROR(Call(connection, connection.stub(), absl::StrCat("create model ", spec.name),
                       &Stub::PrepareAsyncCreateModel, request, response));
  return response;
}

absl::StatusOr<v1::Model> Client::Impl::GetModel(const Connection& connection, absl::string_view model) {
  v1::GetModelRequest request;
  request.set_model(model.data(), model.size());
  v1::GetModelResponse response;
  RETURN_IF_ERROR(Call(connection, connection.stub(), absl::StrCat("get model ", model), &Stub::PrepareAsyncGetModel,
                       request, response));
  return std::move(*response.mutable_model());
}

absl::Status Client::Impl::DeleteModel(absl::string_view model) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connected());
  v1::DeleteModelRequest request;
  request.set_model(model.data(), model.size());
  // A unique id for each call: the connection's id differs by client, the count by call.
  static std::atomic<int64_t> calls = 0;
  request.set_request_id(absl::StrCat(connection->id(), "-", ++calls));
  v1::DeleteModelResponse response;
  RETURN_IF_ERROR(Call(*connection, connection->stub(), absl::StrCat("delete model ", model),
                       &Stub::PrepareAsyncDeleteModel, request, response));
  ForgetAnswered(model);
  return absl::OkStatus();
}

template <typename Request, typename Response>
absl::Status Client::Impl::Ask(absl::string_view name, internal::PreparedRpc<AdminStub, Request, Response> rpc,
                               const Request& request, Response& response) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connected());
  return Call(*connection, connection->admin_stub(), name, rpc, request, response);
}

absl::StatusOr<SaveRecord> Client::Impl::Save(absl::string_view model, const SaveOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connected());
  const std::string name = absl::StrCat("save ", model);
  v1::SaveModelRequest request;
  request.set_model(model.data(), model.size());
  request.set_wait(options.wait);
  v1::SaveModelResponse response;
  if (options.wait) {
    // The daemon limits a save by its --save-timeout.
    grpc::ClientContext context;
    connection->Authenticate(context);
    absl::Status answer = internal::CallUnary(connection->admin_stub(), &AdminStub::PrepareAsyncSaveModel, context,
                                              request, response, interruption_);
    RETURN_IF_ERROR(connection->Explain(name, std::move(answer)));
  } else {
    RETURN_IF_ERROR(
        Call(*connection, connection->admin_stub(), name, &AdminStub::PrepareAsyncSaveModel, request, response));
  }
  return internal::SaveFromProto(response.save());
}

absl::StatusOr<RestoreSummary> Client::Impl::Restore(absl::string_view model, absl::string_view checkpoint,
                                                     const RestoreOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connected());
  grpc::ClientContext context;
  connection->Authenticate(context);
  v1::RestoreModelRequest request;
  request.set_model(model.data(), model.size());
  request.mutable_source()->set_checkpoint(checkpoint.data(), checkpoint.size());
  request.mutable_source()->set_convert_moments(options.convert_moments);
  std::optional<RestoreSummary> summary;
  const auto take = [&](const v1::RestoreModelResponse& response) {
    if (response.has_summary()) summary = internal::RestoreFromProto(response.summary());
    if (!response.has_progress() || options.on_progress == nullptr) return;
    options.on_progress(response.progress().done_bytes(), response.progress().all_bytes());
  };
  absl::Status answer = internal::CallStream(connection->admin_stub(), &AdminStub::PrepareAsyncRestoreModel, context,
                                             request, take, interruption_);
  RETURN_IF_ERROR(connection->Explain(absl::StrCat("restore ", model), std::move(answer)));
  if (summary.has_value()) return *std::move(summary);
  return absl::InternalError(absl::StrCat("restore ", model, ": the stream ended without a summary"));
}

namespace {

absl::Status Check(const Client::Options& options) {
  if (options.rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat("connect: want rank >= 0, got ", options.rank));
  }
  for (const auto& [name, timeout] :
       {std::pair("connect_timeout", options.connect_timeout), std::pair("attach_timeout", options.attach_timeout)}) {
    if (timeout > absl::ZeroDuration()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("connect: want ", name, " > 0, got ", absl::FormatDuration(timeout)));
  }
  if (options.restart_timeout >= absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("connect: want restart_timeout >= 0, got ", absl::FormatDuration(options.restart_timeout)));
}

// One place, and the options that belong to it.
absl::Status CheckPlace(const Client::Options& options) {
  const bool has_certificate = !options.tls_cert.empty() || !options.tls_key.empty() || !options.tls_ca.empty();
  if (options.address.empty() && (has_certificate || !options.tls_roles.empty())) {
    return absl::InvalidArgumentError(
        "connect: address, of a daemon on another machine, is required with tls_cert, "
        "tls_key, tls_ca and tls_roles");
  }
  if (options.address.empty() || options.socket_dir.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("connect: want address or socket_dir, got both, ", options.address, " and ", options.socket_dir));
}

absl::Status CheckCertificate(const Client::Options& options) {
  for (const auto& [name, path] : {std::pair("tls_cert", &options.tls_cert), std::pair("tls_key", &options.tls_key),
                                   std::pair("tls_ca", &options.tls_ca)}) {
    if (!path->empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("connect ", options.address, ": tls_cert, tls_key and tls_ca are required, got no ", name));
  }
  return absl::OkStatus();
}

absl::StatusOr<internal::DaemonPlace> PlaceOf(const Client::Options& options) {
  RETURN_IF_ERROR(CheckPlace(options));
  if (options.address.empty()) return internal::FindSockets(options.socket_dir);
  internal::RemoteDaemon remote{.address = options.address,
                                .files = {.cert = options.tls_cert, .key = options.tls_key, .ca = options.tls_ca},
                                .roles = {}};
  for (const std::string& role : options.tls_roles) {
    absl::StatusOr<tls::RolePattern> pattern = tls::ParseRolePattern(role);
    if (!pattern.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("connect: tls_roles: ", pattern.status().message()));
    }
    remote.roles.push_back(*std::move(pattern));
  }
  RETURN_IF_ERROR(CheckCertificate(options));
  return remote;
}

// Waits where a daemon was killed: a daemon that ends in any other way removes its sockets.
absl::StatusOr<std::unique_ptr<internal::Daemon>> ConnectFirst(const internal::DaemonPlace& place,
                                                               const Client::Options& options) {
  const auto* const paths = std::get_if<internal::SocketPaths>(&place);
  const bool was_there = paths != nullptr && internal::HasSocket(*paths);
  internal::RestartWait wait("connect", options.restart_timeout, options.on_wait,
                             internal::Interruption(options.interrupted));
  while (true) {
    absl::StatusOr<std::unique_ptr<internal::Daemon>> daemon =
        internal::Daemon::Connect(place, options.connect_timeout);
    if (daemon.ok() || !was_there) return daemon;
    if (!wait.Pause(daemon.status())) return wait.Explain(daemon.status());
  }
}

}  // namespace

Client::Client(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

absl::StatusOr<Client> Client::Connect(const Options& options) {
  RETURN_IF_ERROR(Check(options));
  RETURN_IF_ERROR(internal::CheckGrpcWasNotForked());
  ASSIGN_OR_RETURN(const internal::DaemonPlace place, PlaceOf(options));
  ASSIGN_OR_RETURN(std::unique_ptr<internal::Daemon> daemon, ConnectFirst(place, options));
  return Client(internal::ShareWithinProcess(std::make_unique<Impl>(options, std::move(daemon))));
}

absl::StatusOr<Model> Client::OpenModel(const ModelSpec& spec, const CreationOptions& options) {
  const Options& own = impl_->options();
  impl_->UnmapEnded(spec.name);
  internal::RestartWait wait(absl::StrCat("open model ", spec.name), own.restart_timeout, own.on_wait,
                             internal::Interruption(own.interrupted));
  while (true) {
    absl::StatusOr<Impl::Opened> opened = impl_->OpenModel(spec, options, wait);
    if (opened.ok()) {
      RETURN_IF_ERROR(impl_->CheckNotBack(*opened->session, opened->deletion));
      return Model(std::move(opened->session));
    }
    if (!wait.Pause(opened.status())) return wait.Explain(opened.status());
  }
}

absl::Status Client::CheckSpec(const ModelSpec& spec) { return ParseModelSpec(ModelSpecToProto(spec)).status(); }

absl::StatusOr<CreatedModel> Client::CreateModel(const ModelSpec& spec, const CreationOptions& options) {
  return impl_->CreateModel(spec, options);
}

absl::Status Client::DeleteModel(absl::string_view model) { return impl_->DeleteModel(model); }

absl::Status Client::Import(absl::string_view model, absl::Span<const ImportTensor> tensors,
                            const ImportOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, impl_->Connected());
  ASSIGN_OR_RETURN(const v1::Model described, impl_->GetModel(*connection, model));
  ASSIGN_OR_RETURN(const ModelSpec spec, internal::ParseDaemonsSpec(described.spec()));
  grpc::ClientContext context;
  connection->Authenticate(context);
  RETURN_IF_ERROR(connection->Explain(absl::StrCat("import into ", model),
                                      internal::ImportTensors(connection->stub(), context, spec, tensors, options)));
  impl_->ForgetAnswered(model);
  return absl::OkStatus();
}

absl::StatusOr<ExportSummary> Client::Export(absl::string_view model, const ExportOptions& options,
                                             const std::function<absl::Status(const ExportedExtent&)>& sink) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, impl_->Connected());
  grpc::ClientContext context;
  connection->Authenticate(context);
  absl::StatusOr<ExportSummary> summary = internal::ExportTensors(connection->stub(), context, model, options, sink);
  if (summary.ok()) return summary;
  return connection->Explain(absl::StrCat("export ", model), summary.status());
}

absl::StatusOr<SaveRecord> Client::Save(absl::string_view model, const SaveOptions& options) {
  return impl_->Save(model, options);
}

absl::StatusOr<std::vector<SaveRecord>> Client::Saves(absl::string_view model) {
  v1::ListSavesRequest request;
  request.set_model(model.data(), model.size());
  v1::ListSavesResponse response;
  RETURN_IF_ERROR(impl_->Ask("list saves", &AdminStub::PrepareAsyncListSaves, request, response));
  return internal::SavesFromProto(response);
}

absl::StatusOr<RestoreSummary> Client::Restore(absl::string_view model, absl::string_view checkpoint,
                                               const RestoreOptions& options) {
  absl::StatusOr<RestoreSummary> summary = impl_->Restore(model, checkpoint, options);
  if (summary.ok()) impl_->ForgetAnswered(model);
  return summary;
}

absl::StatusOr<std::vector<ModelSummary>> Client::Models() {
  v1::ListModelsResponse response;
  RETURN_IF_ERROR(impl_->Ask("list models", &AdminStub::PrepareAsyncListModels, v1::ListModelsRequest(), response));
  return internal::ModelsFromProto(response);
}

absl::StatusOr<DaemonInfo> Client::GetDaemonInfo() {
  v1::GetVersionResponse response;
  RETURN_IF_ERROR(
      impl_->Ask("describe the daemon", &AdminStub::PrepareAsyncGetVersion, v1::GetVersionRequest(), response));
  return internal::DaemonFromProto(response);
}

absl::StatusOr<std::vector<MemoryUse>> Client::GetMemory() {
  v1::GetMemoryResponse response;
  RETURN_IF_ERROR(impl_->Ask("count memory", &AdminStub::PrepareAsyncGetMemory, v1::GetMemoryRequest(), response));
  return internal::MemoryFromProto(response);
}

}  // namespace paramshard
