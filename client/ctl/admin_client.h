// paramshardctl's connection to a daemon, on this machine or another one.
#ifndef PARAMSHARD_CLIENT_CTL_ADMIN_CLIENT_H_
#define PARAMSHARD_CLIENT_CTL_ADMIN_CLIENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/internal/companion.h"
#include "client/internal/remote_channel.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "paramshard/v1/trainer.grpc.pb.h"

namespace paramshard::ctl {

// Time limit of an RPC. RPCs that read or write a whole model are long.
enum class RpcLength { kShort, kLong };

// Owns the companion connection, and so its token; on another machine a certificate takes its place. One call at a
// time. Movable. Errors of every call: as in admin.proto; UNAVAILABLE and DEADLINE_EXCEEDED when the daemon does not
// answer.
//
//   ASSIGN_OR_RETURN(AdminClient client, AdminClient::Connect({}));
//   v1::ListModelsResponse models;
//   RETURN_IF_ERROR(client.Call(&AdminClient::Stub::ListModels, v1::ListModelsRequest(), models));
class AdminClient {
 public:
  using Stub = v1::AdminService::Stub;
  // RPCs of trainers that operators may call, too.
  using TrainerStub = v1::TrainerService::Stub;

  struct Options {
    // Empty: the default of client.h.
    std::string socket_dir;
    // A daemon on another machine, instead of this machine's.
    std::optional<paramshard::internal::RemoteDaemon> remote = {};
    absl::Duration connect_timeout = absl::Seconds(30);
    // Limit of each short call.
    absl::Duration timeout = absl::Seconds(30);
    // Limit of each long call.
    absl::Duration stream_timeout = absl::Minutes(10);
  };

  // UNAVAILABLE or DEADLINE_EXCEEDED when no daemon answers (says where it looked); PERMISSION_DENIED when it rejects
  // this user. For a remote daemon: errors of OpenRemoteChannel.
  static absl::StatusOr<AdminClient> Connect(const Options& options);

  // An RPC of one of the two services.
  template <typename Service, typename Request, typename Response>
  using Rpc = grpc::Status (Service::*)(grpc::ClientContext*, const Request&, Response*);
  template <typename Request, typename Response>
  using StreamRpc = std::unique_ptr<grpc::ClientReader<Response>> (Stub::*)(grpc::ClientContext*, const Request&);

  // Calls an RPC with one answer.
  template <typename Service, typename Request, typename Response>
  absl::Status Call(Rpc<Service, Request, Response> rpc, const Request& request, Response& response,
                    RpcLength length = RpcLength::kShort) {
    const std::unique_ptr<grpc::ClientContext> context = NewContext(length);
    return Converted((StubOf<Service>().*rpc)(context.get(), request, &response));
  }

  // Calls an RPC with a stream of answers, which reads a whole model, and `sink` for each.
  template <typename Request, typename Response>
  absl::Status ReadAll(StreamRpc<Request, Response> rpc, const Request& request,
                       const std::function<void(const Response&)>& sink) {
    const std::unique_ptr<grpc::ClientContext> context = NewContext(RpcLength::kLong);
    const std::unique_ptr<grpc::ClientReader<Response>> reader = (stub_.get()->*rpc)(context.get(), request);
    Response response;
    while (reader->Read(&response)) sink(response);
    return Converted(reader->Finish());
  }

 private:
  AdminClient(Options options, std::optional<paramshard::internal::Companion> companion,
              const std::shared_ptr<grpc::Channel>& channel);

  template <typename Service>
  Service& StubOf() const {
    if constexpr (std::is_same_v<Service, Stub>) {
      return *stub_;
    } else {
      return *trainer_stub_;
    }
  }
  // Returns a context with the call's token and deadline.
  std::unique_ptr<grpc::ClientContext> NewContext(RpcLength length) const;
  static absl::Status Converted(const grpc::Status& status);

  Options options_;
  std::optional<paramshard::internal::Companion> companion_;  // none for a remote daemon
  std::unique_ptr<Stub> stub_;
  std::unique_ptr<TrainerStub> trainer_stub_;
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_ADMIN_CLIENT_H_
