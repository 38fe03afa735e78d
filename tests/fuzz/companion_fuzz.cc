// Packets on the companion socket of a CompanionServer: two bytes (length, descriptors), then the packet's bytes, and
// so on. After any packets the server welcomes the next client, and holds no connection, descriptor or thread of
// clients that have gone.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "server/edge/companion_server.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/edge/companion_client.h"
#include "tests/support/daemon_process.h"
#include "tests/support/process_counts.h"

namespace paramshard::server {
namespace {

// Packets after which the counts are looked at: waiting for them takes longer than sending.
constexpr int kRunsBetweenCounts = 32;

// Descriptors that a client might pass: its own pidfd, another process's pidfd, and other descriptors.
class Descriptors {
 public:
  // `what` encodes their number (two bits) and kinds.
  std::vector<int> Choose(uint8_t what) const {
    std::vector<int> chosen;
    for (int i = 0; i < (what & 3) + (what >> 7); ++i) chosen.push_back(all_[(what >> 2) % all_.size()].get());
    return chosen;
  }

 private:
  static wire::FileDescriptor PidFd(pid_t pid) {
    return wire::FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  }
  static std::vector<wire::FileDescriptor> Open() {
    std::vector<wire::FileDescriptor> all;
    all.push_back(PidFd(getpid()));
    all.push_back(PidFd(1));
    all.emplace_back(open("/dev/null", O_RDWR | O_CLOEXEC));
    all.emplace_back(open("/dev/zero", O_RDWR | O_CLOEXEC));
    all.emplace_back(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return all;
  }

  const std::vector<wire::FileDescriptor> all_ = Open();
};

class World {
 public:
  World() : server_(Start(directory_.path() + "/handoff.sock")) {}

  void Send(const std::string& input) {
    const absl::StatusOr<CompanionClient> client = CompanionClient::Connect(path());
    PARAMSHARD_CHECK(client.ok());
    for (size_t at = 0; at + 2 <= input.size();) {
      const size_t size = std::min<size_t>(static_cast<uint8_t>(input[at]), input.size() - at - 2);
      const std::vector<int> fds = passed_.Choose(static_cast<uint8_t>(input[at + 1]));
      const auto* const bytes = reinterpret_cast<const uint8_t*>(input.data()) + at + 2;
      // The server may have closed the connection by now.
      if (!client->Send(absl::MakeConstSpan(bytes, size), fds).ok()) return;
      at += 2 + size;
    }
  }

  void Check() {
    Welcome();
    Settle();
    // libFuzzer has some of its own by the time of the first look, and the server may still close its last connection.
    if (!descriptors_.has_value()) descriptors_ = OpenDescriptors();
    if (!threads_.has_value()) threads_ = Threads();
    PARAMSHARD_CHECK(SettlesWithin(*descriptors_, OpenDescriptors));
    PARAMSHARD_CHECK(SettlesWithin(*threads_, Threads));
  }

 private:
  std::string path() const { return directory_.path() + "/handoff.sock"; }
  static std::unique_ptr<CompanionServer> Start(const std::string& path) {
    auto server =
        CompanionServer::Start({.path = path, .allowed_users = {getuid()}, .on_gone = [](const std::string&) {}});
    PARAMSHARD_CHECK(server.ok());
    return *std::move(server);
  }
  void Welcome() const {
    absl::StatusOr<CompanionClient> client = CompanionClient::Connect(path());
    PARAMSHARD_CHECK(client.ok() && client->SayHello().ok());
  }
  void Settle() const {
    while (server_->connection_count() > 0) usleep(100);  // the test's own timeout bounds it
  }

  const test::TemporaryDirectory directory_;
  const std::unique_ptr<CompanionServer> server_;
  const Descriptors passed_;
  std::optional<int64_t> descriptors_;
  std::optional<int64_t> threads_;
};

void Run(const std::string& input) {
  static auto* const world = new World;
  static int runs = 0;
  world->Send(input);
  if (++runs % kRunsBetweenCounts == 0) world->Check();
}

template <typename Message>
std::string Packet(const Message& message, uint8_t fds) {
  const absl::Span<const uint8_t> bytes = wire::CompanionBytes(message);
  std::string packet = {static_cast<char>(std::min<size_t>(bytes.size(), 255)), static_cast<char>(fds)};
  packet.append(bytes.begin(), bytes.begin() + static_cast<uint8_t>(packet[0]));
  return packet;
}

}  // namespace
}  // namespace paramshard::server

const paramshard::FuzzTarget& paramshard::Target() {
  using server::Packet;
  const std::string hello = Packet(wire::CompanionHello{}, 1);
  static const auto* const target = new FuzzTarget{
      .seeds = {hello, hello + hello, Packet(wire::CompanionHello{}, 0), Packet(wire::CompanionHello{}, 1 | 1 << 2),
                Packet(wire::CompanionHello{}, 3 | 2 << 2), Packet(wire::CompanionWelcome{}, 1),
                hello + Packet(wire::CompanionMemory{}, 3), std::string(2, '\0'), hello + std::string(2, '\0')},
      .words = {hello, std::string(1, '\0'), std::string(4, '\xff'), "1PSH", "\xff\x83", std::string("\x10\x01", 2),
                std::string("\x10\x05", 2), std::string("\x10\x83", 2)},
      .runs = 100'000,
      .run = server::Run};
  return *target;
}
