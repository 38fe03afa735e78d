// paramshardctl's connection to a daemon: that of its machine, or another one.
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

// How long an RPC may take. Those that read or write a whole model are long.
enum class RpcLength { kShort, kLong };

// Holds the token by holding the companion connection; elsewhere a certificate stands for it. One call at a time.
// Movable. Errors of every call: the daemon's, as admin.proto states them; UNAVAILABLE and DEADLINE_EXCEEDED when it
// does not answer.
//
//   ASSIGN_OR_RETURN(AdminClient client, AdminClient::Connect({}));
//   v1::ListModelsResponse models;
//   RETURN_IF_ERROR(client.Call(&AdminClient::Stub::ListModels, v1::ListModelsRequest(), models));
class AdminClient {
 public:
  using Stub = v1::AdminService::Stub;
  // Of what operators do as trainers may.
  using TrainerStub = v1::TrainerService::Stub;

  struct Options {
    // Empty: the default of client.h.
    std::string socket_dir;
    // One on another machine, in place of this machine's.
    std::optional<paramshard::internal::RemoteDaemon> remote = {};
    absl::Duration connect_timeout = absl::Seconds(30);
    // Bounds each short call.
    absl::Duration timeout = absl::Seconds(30);
    // Bounds each long call.
    absl::Duration stream_timeout = absl::Minutes(10);
  };

  // UNAVAILABLE or DEADLINE_EXCEEDED when no daemon answers (says where it looked); PERMISSION_DENIED when it refuses
  // this user. Of a remote one: those of OpenRemoteChannel.
  static absl::StatusOr<AdminClient> Connect(const Options& options);

  // Of one of the two services.
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
  // A call's token and deadline.
  std::unique_ptr<grpc::ClientContext> NewContext(RpcLength length) const;
  static absl::Status Converted(const grpc::Status& status);

  Options options_;
  std::optional<paramshard::internal::Companion> companion_;  // none of a remote daemon
  std::unique_ptr<Stub> stub_;
  std::unique_ptr<TrainerStub> trainer_stub_;
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_ADMIN_CLIENT_H_
