#include "tests/campaign/hostile_client.h"

#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/companion.h"
#include "client/internal/sockets.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/admin.pb.h"
#include "paramshard/v1/trainer.pb.h"
#include "proto/wire/handoff.h"
#include "tests/fuzz/mutator.h"
#include "tests/server/handoff/companion_client.h"

namespace paramshard::test {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

constexpr int kMaxDepth = 4;
constexpr absl::Duration kConnectTimeout = absl::Seconds(30);
constexpr auto kCallTime = std::chrono::milliseconds(300);

std::vector<const MethodDescriptor*> Methods() {
  std::vector<const MethodDescriptor*> methods;
  for (const auto* const found : {v1::GetModelRequest::descriptor()->file()->FindServiceByName("TrainerService"),
                                  v1::DrainRequest::descriptor()->file()->FindServiceByName("AdminService")}) {
    for (int i = 0; i < found->method_count(); ++i) {
      if (found->method(i)->name() != "Drain") methods.push_back(found->method(i));
    }
  }
  return methods;
}

// Fills messages with what may pass for a value.
class RandomMessages {
 public:
  RandomMessages(std::string model, uint64_t seed)
      : model_(std::move(model)), mutator_(seed, {model_, "\x08", "\xff"}) {}

  size_t Below(size_t limit) { return mutator_.Below(limit); }

  std::string Bytes(const Descriptor& type) {
    const std::unique_ptr<Message> message(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
    Fill(*message, kMaxDepth);
    const std::string bytes = message->SerializePartialAsString();
    return Below(3) == 0 ? mutator_.Mutate(bytes) : bytes;
  }

 private:
  int64_t Number() {
    constexpr int64_t kNumbers[] = {0,    1,         2,         3,         -1,        64,
                                    4096, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t{1} << 40};
    return kNumbers[Below(std::size(kNumbers))];
  }
  double Real() {
    constexpr double kNumbers[] = {0, 1, -1, 1e-3, 1e300, -1e300, __builtin_nan(""), __builtin_inf()};
    return kNumbers[Below(std::size(kNumbers))];
  }
  std::string Text(const FieldDescriptor& field) {
    if (field.name() == "model" || field.name() == "name") return model_;
    const std::string texts[] = {"", "first", "first.weight", "/dev/zero", "x\n\x1b", std::string(5000, 'y'), "*"};
    return texts[Below(std::size(texts))];
  }
  void Fill(Message& message, int depth) {
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor& field = *message.GetDescriptor()->field(i);
      const bool is_model = field.name() == "model";
      if (!is_model && Below(3) == 0) continue;
      for (size_t count = field.is_repeated() ? Below(3) : 1; count > 0; --count) Set(message, field, depth);
    }
  }
  void Set(Message& message, const FieldDescriptor& field, int depth);

  const std::string model_;
  Mutator mutator_;
};

void RandomMessages::Set(Message& message, const FieldDescriptor& field, int depth) {
  const auto& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
#define PARAMSHARD_SET(TYPE, Name, value)                                                                     \
  case FieldDescriptor::CPPTYPE_##TYPE:                                                                       \
    repeated ? reflection.Add##Name(&message, &field, value) : reflection.Set##Name(&message, &field, value); \
    break
    PARAMSHARD_SET(INT32, Int32, static_cast<int32_t>(Number()));
    PARAMSHARD_SET(UINT32, UInt32, static_cast<uint32_t>(Number()));
    PARAMSHARD_SET(INT64, Int64, Number());
    PARAMSHARD_SET(UINT64, UInt64, static_cast<uint64_t>(Number()));
    PARAMSHARD_SET(FLOAT, Float, static_cast<float>(Real()));
    PARAMSHARD_SET(DOUBLE, Double, Real());
    PARAMSHARD_SET(BOOL, Bool, Below(2) == 0);
    PARAMSHARD_SET(ENUM, EnumValue, static_cast<int>(Below(12)));
    PARAMSHARD_SET(STRING, String, Text(field));
#undef PARAMSHARD_SET
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth == 0) break;
      Fill(repeated ? *reflection.AddMessage(&message, &field) : *reflection.MutableMessage(&message, &field),
           depth - 1);
  }
}

// One call in steps, each of which ends at the deadline of the call: any method is a stream on the wire.
bool Call(grpc::GenericStub& stub, const std::string& token, const MethodDescriptor& method, RandomMessages& messages) {
  grpc::ClientContext context;
  context.AddMetadata("paramshard-token", token);
  context.set_deadline(std::chrono::system_clock::now() + kCallTime);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto stream =
      stub.PrepareCall(&context, absl::StrCat("/", method.service()->full_name(), "/", method.name()), &queue);
  stream->StartCall(nullptr);
  bool going = next();
  for (size_t count = method.client_streaming() ? messages.Below(4) : 1; going && count > 0; --count) {
    const std::string bytes = messages.Bytes(*method.input_type());
    const grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    going = next();
  }
  if (going) {
    stream->WritesDone(nullptr);
    next();
  }
  grpc::ByteBuffer answer;
  do {
    stream->Read(&answer, nullptr);
  } while (next());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  next();
  return status.error_code() != grpc::StatusCode::UNAVAILABLE;
}

}  // namespace

absl::StatusOr<int> SendMutatedRequests(const std::string& socket_dir, const std::string& model, int count,
                                        uint64_t seed) {
  ASSIGN_OR_RETURN(const auto paths, internal::FindSockets(socket_dir));
  ASSIGN_OR_RETURN(const auto companion, internal::Companion::Connect(paths.handoff, kConnectTimeout));
  ASSIGN_OR_RETURN(const auto channel, internal::OpenChannel(paths, kConnectTimeout));
  grpc::GenericStub stub(channel);
  RandomMessages messages(model, seed);
  const std::vector<const MethodDescriptor*> methods = Methods();
  int answered = 0;
  for (int i = 0; i < count; ++i) {
    answered += Call(stub, companion.token(), *methods[messages.Below(methods.size())], messages);
  }
  return answered;
}

absl::Status SendHandoffNoise(const std::string& socket_dir, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const wire::FileDescriptor own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const wire::FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const absl::Span<const uint8_t> hello = wire::HandoffBytes(wire::HandoffHello{});
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const auto client, server::CompanionClient::Connect(socket_dir + "/handoff.sock"));
    for (int packets = random() % 4; packets > 0; --packets) {
      std::vector<uint8_t> bytes(hello.begin(), hello.end());
      if (random() % 2 == 0) bytes.resize(random() % 600);
      if (random() % 2 == 0 && !bytes.empty()) bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
      const std::vector<int> fds(random() % 6, random() % 2 == 0 ? own.get() : null.get());
      // The daemon may have closed the connection by now.
      if (!client.Send(bytes, fds).ok()) break;
    }
  }
  return absl::OkStatus();
}

}  // namespace paramshard::test
