// A gRPC service that reads no message of an unknown caller.
#ifndef PARAMSHARD_SERVER_EDGE_GUARDED_SERVICE_H_
#define PARAMSHARD_SERVER_EDGE_GUARDED_SERVICE_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/service_type.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/base/check.h"
#include "server/edge/call.h"
#include "server/edge/caller_timeout.h"
#include "server/edge/callers.h"
#include "server/edge/workers.h"
#include "server/observe/metric_registry.h"

namespace paramshard::server {

// Thread pools for calls. Calls that wait for a client, or compute for long, do not hold up the others.
struct CallWorkers {
  static absl::StatusOr<CallWorkers> Start();

  std::unique_ptr<Workers> questions;  // short calls that change nothing
  std::unique_ptr<Workers> changes;    // creations of models, which may wait for other daemons, and models' ends
  std::unique_ptr<Workers> deletions;  // of models: none waits for a creation of another model
  std::unique_ptr<Workers> transfers;  // long ones, which may wait for their clients
  std::unique_ptr<Workers> sessions;   // one message of a session
  std::unique_ptr<Workers> mirrors;    // planes for mirrors: no mirror holds up the other calls
  std::unique_ptr<Workers> news;       // mirrors' questions, which wait for news
};

// Authenticates every call of a derived service by its metadata before any message of it is read or parsed. The derived
// class gives each method of the service a handler in its constructor.
//
//   class Greeter final : public GuardedService {
//    public:
//     Greeter(Callers* callers, CallWorkers* workers) : GuardedService(v1::Greeter::service_full_name(), callers) {
//       Handle("Greet", workers->questions.get(), &Greeter::Greet);
//       CheckComplete();
//     }
//    private:
//     absl::StatusOr<v1::GreetResponse> Greet(const Call& call, const v1::GreetRequest& request);
//   };
//
// Thread-safe once constructed. `callers` and the workers outlive the server that the service is registered with.
class GuardedService : public grpc::Service {
 protected:
  // `timeout` holds for every method. `metrics`, which counts calls that fail, outlives the server too.
  GuardedService(absl::string_view full_name, Callers* callers, CallerTimeout timeout = {},
                 MetricRegistry* metrics = &MetricRegistry::Unread(),
                 Callers::Strangers strangers = Callers::Strangers::kAreRefused);

  // One request, one response.
  template <typename Self, typename Request, typename Response>
  void Handle(const char* method, Workers* workers,
              absl::StatusOr<Response> (Self::*handler)(const Call&, const Request&)) {
    AddCall<Request, Response>(method, workers, [this, handler](Call& call) {
      Request request;
      if (const absl::Status status = call.Parse(request); !status.ok()) return call.End(status);
      Finish(call, (static_cast<Self*>(this)->*handler)(call, request));
    });
  }
  // One request, a stream of responses.
  template <typename Self, typename Request, typename Response>
  void Handle(const char* method, Workers* workers,
              absl::Status (Self::*handler)(const Call&, const Request&, MessageWriter<Response>*)) {
    AddCall<Request, Response>(method, workers, [this, handler](Call& call) {
      Request request;
      if (const absl::Status status = call.Parse(request); !status.ok()) return call.End(status);
      MessageWriter<Response> writer(&call);
      call.End((static_cast<Self*>(this)->*handler)(call, request, &writer));
    });
  }
  // A stream of requests, one response.
  template <typename Self, typename Request, typename Response>
  void Handle(const char* method, Workers* workers,
              absl::StatusOr<Response> (Self::*handler)(const Call&, MessageReader<Request>*)) {
    AddCall<Request, Response>(method, workers, [this, handler](Call& call) {
      MessageReader<Request> reader(&call);
      Finish(call, (static_cast<Self*>(this)->*handler)(call, &reader));
    });
  }
  // A stream that the reactor returned by `begin` handles. It must not block.
  using Begin = std::function<CallReactor*(grpc::CallbackServerContext* context, Callers::Admission admission)>;
  void Handle(const char* method, Begin begin);

  // Ends the program if a method has no handler: a bug of the derived class.
  void CheckComplete() const;

 private:
  template <typename Request, typename Response>
  void AddCall(const char* method, Workers* workers, std::function<void(Call&)> body) {
    const google::protobuf::MethodDescriptor& descriptor = Descriptor(method);
    PARAMSHARD_CHECK(descriptor.input_type() == Request::descriptor());
    PARAMSHARD_CHECK(descriptor.output_type() == Response::descriptor());
    AddCall(method, workers, std::move(body));
  }
  void AddCall(const char* method, Workers* workers, std::function<void(Call&)> body);
  const google::protobuf::MethodDescriptor& Descriptor(const char* method) const;

  template <typename Response>
  static void Finish(Call& call, const absl::StatusOr<Response>& response) {
    response.ok() ? call.Answer(*response) : call.End(response.status());
  }

  const google::protobuf::ServiceDescriptor& descriptor_;
  Callers* const callers_;
  MetricRegistry* const metrics_;
  const CallerTimeout timeout_;
  const Callers::Strangers strangers_;
  // Calls and gRPC refer to their elements.
  std::deque<CallMethod> calls_;
  std::deque<std::string> paths_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_GUARDED_SERVICE_H_
