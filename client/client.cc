#include "client/client.h"

#include <atomic>
#include <utility>

#include <grpcpp/client_context.h>

#include "absl/strings/str_cat.h"
#include "client/internal/attach.h"
#include "client/internal/connection.h"
#include "client/internal/deadline.h"
#include "client/internal/epoch_layout.h"
#include "client/internal/grpc_status.h"
#include "client/internal/owner_process.h"
#include "client/internal/sockets.h"
#include "client/internal/tensor_transfer.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "proto/model/model_spec_proto.h"

namespace paramshard {

using internal::Connection;

// Shared between threads.
class Client::Impl {
 public:
  Impl(Options options, std::unique_ptr<internal::Daemon> daemon)
      : options_(std::move(options)), daemon_(std::move(daemon)) {}

  const Options& options() const { return options_; }
  const internal::SocketPaths& paths() const { return daemon_->paths(); }

  // Opens the connection for one call.
  absl::StatusOr<std::shared_ptr<Connection>> Connected();

  absl::Status CreateModel(const ModelSpec& spec, const CreationOptions& options);
  absl::StatusOr<v1::Model> GetModel(const Connection& connection, absl::string_view model);
  absl::Status DeleteModel(absl::string_view model);

 private:
  // Initial values of a large model take their time; the attach timeout is what the caller would wait for a session.
  void Prepare(const Connection& connection, grpc::ClientContext& context) const;

  const internal::OwnerProcess owner_;
  const Options options_;
  const std::unique_ptr<internal::Daemon> daemon_;
};

absl::StatusOr<std::shared_ptr<Connection>> Client::Impl::Connected() {
  RETURN_IF_ERROR(owner_.Check("client"));
  return daemon_->Connected();
}

void Client::Impl::Prepare(const Connection& connection, grpc::ClientContext& context) const {
  connection.Authenticate(context);
  context.set_deadline(internal::Deadline::After(options_.attach_timeout).ToGrpc());
}

absl::Status Client::Impl::CreateModel(const ModelSpec& spec, const CreationOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connected());
  grpc::ClientContext context;
  Prepare(*connection, context);
  v1::CreateModelRequest request;
  *request.mutable_spec() = ModelSpecToProto(spec);
  if (!options.restore.empty()) {
    request.mutable_restore()->set_checkpoint(options.restore);
    request.mutable_restore()->set_convert_moments(options.convert_moments);
  }
  v1::CreateModelResponse response;
  const grpc::Status answer = connection->stub().CreateModel(&context, request, &response);
  return connection->Explain(absl::StrCat("create model ", spec.name), internal::FromGrpc(answer));
}

absl::StatusOr<v1::Model> Client::Impl::GetModel(const Connection& connection, absl::string_view model) {
  grpc::ClientContext context;
  Prepare(connection, context);
  v1::GetModelRequest request;
  request.set_model(model.data(), model.size());
  v1::GetModelResponse response;
  const grpc::Status answer = connection.stub().GetModel(&context, request, &response);
  RETURN_IF_ERROR(connection.Explain(absl::StrCat("get model ", model), internal::FromGrpc(answer)));
  return std::move(*response.mutable_model());
}

absl::Status Client::Impl::DeleteModel(absl::string_view model) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connected());
  grpc::ClientContext context;
  Prepare(*connection, context);
  v1::DeleteModelRequest request;
  request.set_model(model.data(), model.size());
  // One call, one id: the token tells clients apart, the count tells calls of one process apart.
  static std::atomic<int64_t> calls = 0;
  request.set_request_id(absl::StrCat(connection->token(), "-", ++calls));
  v1::DeleteModelResponse response;
  const grpc::Status answer = connection->stub().DeleteModel(&context, request, &response);
  return connection->Explain(absl::StrCat("delete model ", model), internal::FromGrpc(answer));
}

namespace {

absl::Status Check(const Client::Options& options) {
  if (options.rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat("connect: a rank >= 0 expected, got ", options.rank));
  }
  for (const auto& [name, timeout] :
       {std::pair("connect_timeout", options.connect_timeout), std::pair("attach_timeout", options.attach_timeout)}) {
    if (timeout > absl::ZeroDuration()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("connect: ", name, " > 0 expected, got ", absl::FormatDuration(timeout)));
  }
  return absl::OkStatus();
}

// gRPC's threads do not live on in a forked child, and its descriptors stay its parent's.
absl::Status CheckGrpcWasNotForked() {
  static const internal::OwnerProcess first_that_connected;
  return first_that_connected.Check("connect: gRPC");
}

}  // namespace

Client::Client(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

absl::StatusOr<Client> Client::Connect(const Options& options) {
  RETURN_IF_ERROR(Check(options));
  RETURN_IF_ERROR(CheckGrpcWasNotForked());
  ASSIGN_OR_RETURN(const internal::SocketPaths paths, internal::FindSockets(options.socket_dir));
  ASSIGN_OR_RETURN(std::unique_ptr<internal::Daemon> daemon, internal::Daemon::Connect(paths, options.connect_timeout));
  return Client(internal::ShareWithinProcess(std::make_unique<Impl>(options, std::move(daemon))));
}

absl::StatusOr<Model> Client::OpenModel(const ModelSpec& spec, const CreationOptions& options) {
  RETURN_IF_ERROR(impl_->CreateModel(spec, options));
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, impl_->Connected());
  ASSIGN_OR_RETURN(std::shared_ptr<internal::Session> session,
                   internal::Attach(connection->channel(), impl_->paths(), impl_->options(), spec.name));
  return Model(std::move(session));
}

absl::Status Client::CreateModel(const ModelSpec& spec, const CreationOptions& options) {
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
  return connection->Explain(absl::StrCat("import into ", model),
                             internal::ImportTensors(connection->stub(), context, spec, tensors, options));
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

}  // namespace paramshard
