#include "tests/support/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/check.h"

namespace paramshard::test {
namespace {

constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();
constexpr int64_t kPieceBytes = 64 << 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

Relay::Relay(int server_port) : server_port_(server_port), left_(kEndless) {
  listener_ = wire::FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  PARAMSHARD_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  PARAMSHARD_CHECK(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  PARAMSHARD_CHECK(listen(listener_.get(), SOMAXCONN) == 0);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

Relay::~Relay() {
  {
    const absl::MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
    CloseAll();
  }
  shutdown(listener_.get(), SHUT_RDWR);
  accepting_.join();
  std::list<Connection> connections;
  {
    const absl::MutexLock lock(&mu_);
    CloseAll();
    connections = std::exchange(connections_, {});
  }
  for (Connection& connection : connections) {
    for (std::thread& thread : connection.threads) thread.join();
  }
}

void Relay::CutAfter(int64_t bytes) {
  const absl::MutexLock lock(&mu_);
  left_ = bytes;
}

bool Relay::AwaitCut(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const absl::MutexLock lock(&mu_);
  while (left_ > 0) {
    if (changed_.WaitWithDeadline(&mu_, deadline)) return left_ == 0;
  }
  return true;
}

void Relay::Mend() {
  const absl::MutexLock lock(&mu_);
  left_ = kEndless;
  changed_.SignalAll();
}

void Relay::Break() {
  const absl::MutexLock lock(&mu_);
  ++breaks_;
  CloseAll();
  left_ = kEndless;
  changed_.SignalAll();
}

// The descriptors stay open until their threads have ended.
void Relay::CloseAll() {
  mu_.AssertHeld();
  for (const Connection& connection : connections_) {
    shutdown(connection.client.get(), SHUT_RDWR);
    shutdown(connection.server.get(), SHUT_RDWR);
  }
}

void Relay::Accept() {
  while (true) {
    wire::FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) return;
    wire::FileDescriptor server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(server_port_);
    // A server that is away refuses: so does this end.
    if (connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) continue;
    const absl::MutexLock lock(&mu_);
    if (stopped_) return;
    Connection& connection = connections_.emplace_back();
    const int client_end = client.get(), server_end = server.get();
    connection.client = std::move(client);
    connection.server = std::move(server);
    connection.threads.emplace_back([=, this] { Pass(client_end, server_end, /*is_of_server=*/false); });
    connection.threads.emplace_back([=, this] { Pass(server_end, client_end, /*is_of_server=*/true); });
  }
}

int64_t Relay::Take(int from, bool is_of_server, std::vector<char>& piece) {
  // Bytes, and an end, stay in the kernel while the link is cut.
  char first;
  const bool is_end = recv(from, &first, 1, MSG_PEEK) <= 0;
  const absl::MutexLock lock(&mu_);
  const int64_t breaks = breaks_;
  while (left_ == 0 && !stopped_ && breaks_ == breaks) changed_.Wait(&mu_);
  if (is_end || stopped_ || breaks_ != breaks) return 0;
  const int64_t most = is_of_server ? std::min(left_, kPieceBytes) : kPieceBytes;
  const int64_t taken = recv(from, piece.data(), most, MSG_DONTWAIT);
  if (taken <= 0 || !is_of_server || left_ == kEndless) return taken;
  left_ -= taken;
  if (left_ == 0) changed_.SignalAll();
  return taken;
}

void Relay::Pass(int from, int to, bool is_of_server) {
  std::vector<char> piece(kPieceBytes);
  int64_t taken;
  while ((taken = Take(from, is_of_server, piece)) > 0) {
    int64_t sent = 0;
    for (int64_t more = 1; more > 0 && sent < taken; sent += std::max<int64_t>(more, 0)) {
      more = send(to, piece.data() + sent, taken - sent, MSG_NOSIGNAL);
    }
    if (sent < taken) break;
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

}  // namespace paramshard::test
