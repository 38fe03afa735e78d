#include "lab/campaign/hostile_client.h"

#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <vector>

#include "client/internal/companion.h"
#include "client/internal/sockets.h"
#include "common/shared_memory/companion_packet.h"
#include "kernels/base/status_macros.h"
#include "tests/fuzz/any_call.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/random_message.h"
#include "tests/server/edge/companion_client.h"

namespace paramshard::test {
namespace {

using google::protobuf::MethodDescriptor;

constexpr absl::Duration kConnectTimeout = absl::Seconds(30);

std::vector<const MethodDescriptor*> HarmlessMethods() {
  std::vector<const MethodDescriptor*> methods = ServedMethods();
  methods.erase(std::remove_if(methods.begin(), methods.end(),
                               [](const MethodDescriptor* method) { return method->name() == "Drain"; }),
                methods.end());
  return methods;
}

}  // namespace

absl::StatusOr<int> SendMutatedRequests(const std::string& socket_dir, const std::string& model, int count,
                                        uint64_t seed) {
  ASSIGN_OR_RETURN(const auto paths, internal::FindSockets(socket_dir));
  ASSIGN_OR_RETURN(const auto companion, internal::Companion::Connect(paths.companion, kConnectTimeout));
  ASSIGN_OR_RETURN(const auto channel, internal::OpenChannel(paths, kConnectTimeout));
  Mutator mutator(seed, {model, "\x08", "\xff"});
  const std::vector<const MethodDescriptor*> methods = HarmlessMethods();
  int answered = 0;
  for (int i = 0; i < count; ++i) {
    const MethodDescriptor& method = *methods[mutator.Below(methods.size())];
    std::vector<std::string> messages(method.client_streaming() ? mutator.Below(4) : 1);
    for (std::string& message : messages) message = RandomMessage(*method.input_type(), model, mutator);
    const grpc::Status status = CallAny(channel, method, companion.token(), messages);
    answered += status.error_code() != grpc::StatusCode::UNAVAILABLE;
  }
  return answered;
}

absl::Status SendCompanionNoise(const std::string& socket_dir, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const wire::FileDescriptor own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const wire::FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  constexpr wire::CompanionHello kHello;
  const absl::Span<const uint8_t> hello = wire::CompanionBytes(kHello);
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
