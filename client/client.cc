#include "client/client.h"

#include <utility>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/internal/attach.h"
#include "client/internal/companion.h"
#include "client/internal/grpc_status.h"
#include "client/internal/sockets.h"
#include "client/internal/spec_proto.h"
#include "client/internal/tensor_transfer.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/trainer.grpc.pb.h"

namespace paramshard {

// Immutable, so that threads may share it; a call makes a context of its own.
class Client::Impl {
 public:
  Impl(Options options, internal::SocketPaths paths, internal::Companion companion,
       std::shared_ptr<grpc::Channel> channel)
      : options_(std::move(options)),
        paths_(std::move(paths)),
        companion_(std::move(companion)),
        channel_(std::move(channel)),
        stub_(v1::TrainerService::NewStub(channel_)) {}

  const Options& options() const { return options_; }
  const internal::SocketPaths& paths() const { return paths_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  v1::TrainerService::Stub& stub() { return *stub_; }

  void Authenticate(grpc::ClientContext& context) const { context.AddMetadata("paramshard-token", companion_.token()); }

  absl::Status CreateModel(const ModelSpec& spec);
  absl::StatusOr<v1::Model> GetModel(absl::string_view model);
  absl::Status DeleteModel(absl::string_view model);

 private:
  const Options options_;
  const internal::SocketPaths paths_;
  const internal::Companion companion_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::TrainerService::Stub> stub_;
};

absl::Status Client::Impl::CreateModel(const ModelSpec& spec) {
  grpc::ClientContext context;
  Authenticate(context);
  // Initial values of a large model take their time; the attach timeout is what the caller would
  // wait for a session.
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.attach_timeout));
  v1::CreateModelRequest request;
  *request.mutable_spec() = internal::ToProto(spec);
  v1::CreateModelResponse response;
  return internal::FromGrpc(stub_->CreateModel(&context, request, &response));
}

absl::StatusOr<v1::Model> Client::Impl::GetModel(absl::string_view model) {
  grpc::ClientContext context;
  Authenticate(context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.attach_timeout));
  v1::GetModelRequest request;
  request.set_model(model.data(), model.size());
  v1::GetModelResponse response;
  RETURN_IF_ERROR(internal::FromGrpc(stub_->GetModel(&context, request, &response)));
  return std::move(*response.mutable_model());
}

absl::Status Client::Impl::DeleteModel(absl::string_view model) {
  grpc::ClientContext context;
  Authenticate(context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.attach_timeout));
  v1::DeleteModelRequest request;
  request.set_model(model.data(), model.size());
  // One call, one id: the token tells clients apart, the time tells calls of one client apart.
  request.set_request_id(absl::StrCat(companion_.token(), "-", absl::GetCurrentTimeNanos()));
  v1::DeleteModelResponse response;
  return internal::FromGrpc(stub_->DeleteModel(&context, request, &response));
}

Client::Client(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

absl::StatusOr<Client> Client::Connect(const Options& options) {
  if (options.rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat("connect: a rank >= 0 expected, got ", options.rank));
  }
  ASSIGN_OR_RETURN(internal::SocketPaths paths, internal::FindSockets(options.socket_dir));
  ASSIGN_OR_RETURN(internal::Companion companion, internal::Companion::Connect(paths.handoff, options.connect_timeout));
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, internal::OpenChannel(paths, options.connect_timeout));
  return Client(std::make_shared<Impl>(options, std::move(paths), std::move(companion), std::move(channel)));
}

absl::StatusOr<Model> Client::OpenModel(const ModelSpec& spec) {
  RETURN_IF_ERROR(impl_->CreateModel(spec));
  ASSIGN_OR_RETURN(std::shared_ptr<internal::Session> session,
                   internal::Attach(impl_->channel(), impl_->paths(), impl_->options(), spec.name));
  return Model(std::move(session));
}

absl::Status Client::CreateModel(const ModelSpec& spec) { return impl_->CreateModel(spec); }

absl::Status Client::DeleteModel(absl::string_view model) { return impl_->DeleteModel(model); }

absl::Status Client::Import(absl::string_view model, absl::Span<const ImportTensor> tensors,
                            const ImportOptions& options) {
  ASSIGN_OR_RETURN(const v1::Model described, impl_->GetModel(model));
  grpc::ClientContext context;
  impl_->Authenticate(context);
  return internal::ImportTensors(impl_->stub(), context, described.spec(), tensors, options);
}

absl::StatusOr<ExportSummary> Client::Export(absl::string_view model, const ExportOptions& options,
                                             const std::function<absl::Status(const ExportedExtent&)>& sink) {
  grpc::ClientContext context;
  impl_->Authenticate(context);
  return internal::ExportTensors(impl_->stub(), context, model, options, sink);
}

}  // namespace paramshard
