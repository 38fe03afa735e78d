#include "server/edge/guarded_service.h"

#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/edge/grpc_status.h"

namespace paramshard::server {
namespace {

// Answers a caller that is not admitted. No message of the call is read.
class Refusal final : public CallReactor {
 public:
  explicit Refusal(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

const google::protobuf::ServiceDescriptor& FindService(absl::string_view full_name) {
  const auto* const service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(std::string(full_name));
  PARAMSHARD_CHECK(service != nullptr);
  return *service;
}

}  // namespace

absl::StatusOr<CallWorkers> CallWorkers::Start() {
  CallWorkers workers;
  ASSIGN_OR_RETURN(workers.questions, Workers::Start("questions", {.threads = 8, .max_works = 1024}));
  ASSIGN_OR_RETURN(workers.changes, Workers::Start("changes of models", {.threads = 8, .max_works = 64}));
  ASSIGN_OR_RETURN(workers.deletions, Workers::Start("deletions of models", {.threads = 2, .max_works = 64}));
  ASSIGN_OR_RETURN(workers.transfers,
                   Workers::Start("transfers", {.threads = 16, .max_works = 16, .max_works_of_connection = 4}));
  // Each session posts one message at a time.
  ASSIGN_OR_RETURN(workers.sessions, Workers::Start("sessions", {.threads = 4}));
  ASSIGN_OR_RETURN(workers.mirrors, Workers::Start("mirrors", {.threads = 8, .max_works = 64}));
  // Mirrors on other machines count as one user, who may have half of them.
  ASSIGN_OR_RETURN(workers.news, Workers::Start("questions of mirrors", {.threads = 32, .max_works = 1024}));
  return workers;
}

GuardedService::GuardedService(absl::string_view full_name, Callers* callers, CallerTimeout timeout,
                               MetricRegistry* metrics, Callers::Strangers strangers)
    : descriptor_(FindService(full_name)),
      callers_(callers),
      metrics_(metrics),
      timeout_(timeout),
      strangers_(strangers) {}

const google::protobuf::MethodDescriptor& GuardedService::Descriptor(const char* method) const {
  const google::protobuf::MethodDescriptor* const descriptor = descriptor_.FindMethodByName(method);
  PARAMSHARD_CHECK(descriptor != nullptr);
  return *descriptor;
}

void GuardedService::AddCall(const char* method, Workers* workers, std::function<void(Call&)> body) {
  const CallMethod& served =
      calls_.emplace_back(CallMethod{.name = method, .workers = workers, .timeout = timeout_, .metrics = metrics_});
  Handle(method, [&served, body = std::move(body)](grpc::CallbackServerContext* context, Callers::Admission admission) {
    return Call::Start(served, context, std::move(admission), body);
  });
}

// Registers every method as a stream, which looks alike on the wire: gRPC's server would read the single request of a
// unary call by itself before the caller is known.
void GuardedService::Handle(const char* method, Begin begin) {
  paths_.push_back(absl::StrCat("/", descriptor_.full_name(), "/", Descriptor(method).name()));
  AddMethod(
      new grpc::internal::RpcServiceMethod(paths_.back().c_str(), grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(static_cast<int>(paths_.size()) - 1,
                        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                            [this, begin = std::move(begin)](grpc::CallbackServerContext* context) -> CallReactor* {
                              absl::StatusOr<Callers::Admission> admission = callers_->Admit(*context, strangers_);
                              metrics_->AddRpcEnd(admission.status());
                              if (!admission.ok()) return new Refusal(admission.status());
                              return begin(context, *std::move(admission));
                            }));
}

void GuardedService::CheckComplete() const {
  PARAMSHARD_CHECK(static_cast<int>(paths_.size()) == descriptor_.method_count());
}

}  // namespace paramshard::server
