#include "client/internal/attach.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/internal/companion.h"
#include "client/internal/session_stream.h"
#include "common/rpc/durations.h"
#include "common/rpc/status.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

// The daemon knows which ranks are missing: its deadline comes first.
constexpr absl::Duration kSlack = absl::Seconds(5);

v1::AttachRequest MakeRequest(const Client::Options& options, const std::string& model) {
  v1::AttachRequest request;
  request.set_model(model);
  request.set_rank(options.rank);
  request.set_take_over(options.take_over);
  *request.mutable_attach_timeout() = DurationToProto(options.attach_timeout);
  return request;
}

absl::StatusOr<v1::EpochStarted> AwaitStarted(SessionStream& stream, const Deadline& deadline) {
  while (true) {
    ASSIGN_OR_RETURN(v1::SessionResponse response, stream.Read(deadline));
    switch (response.message_case()) {
      case v1::SessionResponse::kAccepted:
        continue;
      case v1::SessionResponse::kStarted:
        return std::move(*response.mutable_started());
      case v1::SessionResponse::kEnded:
        return ReasonFromProto(response.ended().why());
      case v1::SessionResponse::MESSAGE_NOT_SET:
        break;
    }
    return absl::InternalError("attach: want accepted, started or ended from the daemon, got an unknown message");
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<Session>> Attach(const std::shared_ptr<grpc::Channel>& channel, const SocketPaths& paths,
                                                const Client::Options& options, const std::string& model) {
  ASSIGN_OR_RETURN(Companion companion, Companion::Connect(paths.companion, options.connect_timeout));
  const Deadline deadline = Deadline::After(options.attach_timeout + kSlack);
  const Interruption interruption(options.interrupted);
  ASSIGN_OR_RETURN(auto stream, SessionStream::Open(channel, companion.token(), MakeRequest(options, model), deadline,
                                                    interruption));
  ASSIGN_OR_RETURN(v1::EpochStarted started, AwaitStarted(*stream, deadline));
  // The daemon has sent it before `started`.
  ASSIGN_OR_RETURN(SessionMemory memory, companion.ReceiveMemory(kSlack));
  return Session::Create({.rank = options.rank,
                          .prefetch = options.prefetch,
                          .started = std::move(started),
                          .companion = std::move(companion),
                          .memory = std::move(memory),
                          .stream = std::move(stream),
                          .interruption = interruption});
}

}  // namespace paramshard::internal
