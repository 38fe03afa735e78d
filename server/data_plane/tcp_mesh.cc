#include "server/data_plane/tcp_mesh.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <utility>

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

using gloo::transport::UnboundBuffer;

// All bytes between two members go in order, so one tag serves.
constexpr uint64_t kTag = 0;

// Returns Gloo's text without its source position: "[/src/pair.cc:1] Connection closed" becomes "Connection closed".
std::string GlooText(const std::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return text.rfind('[', 0) == 0 && end != std::string::npos ? text.substr(end + 2) : text;
}

// Converts Gloo's exceptions to statuses, here only.
template <typename Call>
absl::Status CatchGloo(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return absl::UnavailableError(GlooText(error));
  }
  return absl::OkStatus();
}

std::chrono::milliseconds GlooTimeout(absl::Duration timeout) {
  // Gloo multiplies timeouts, and gives negative ones and 0 other meanings. Rounded up, since a timeout before the
  // deadline would look like a lost connection.
  const absl::Duration whole = absl::Ceil(timeout, absl::Milliseconds(1));
  return absl::ToChronoMilliseconds(std::max(absl::Milliseconds(1), std::min(whole, absl::Hours(24))));
}

void IgnoreBrokenPipes() {
  struct sigaction action = {};
  sigaction(SIGPIPE, nullptr, &action);
  if (action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

using AddressInfo = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Gloo crashes on an address that it cannot read, and leaks the parsed address if it cannot bind it.
absl::Status CheckListenAddress(const std::string& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("listen address: want an IP address, got ", address));
  }
  const AddressInfo info(found, &freeaddrinfo);
  const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int error = fd < 0 || bind(fd, info->ai_addr, info->ai_addrlen) != 0 ? errno : 0;
  if (fd >= 0) close(fd);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("listen address ", address,
                                             ": failed to bind, want an address of this host: ", std::strerror(error)));
}

absl::Status PeerError(const MeshMember& member, SteadyTime deadline, const absl::Status& status) {
  if (SteadyNow() >= deadline) {
    return absl::DeadlineExceededError(absl::StrCat(MemberName(member), " timed out"));
  }
  return absl::UnavailableError(absl::StrCat("connection to ", MemberName(member), " lost: ", status.message()));
}

// Returns the addresses at which a member listens for each peer, read before any peer connects: afterwards Gloo returns
// the connection's own address, with which a peer would break the connection and be refused.
std::vector<std::string> ListeningAddresses(gloo::transport::Context& context, int self) {
  std::vector<std::string> addresses(context.size);
  for (int peer = 0; peer < context.size; ++peer) {
    if (peer == self) continue;
    const std::vector<char> bytes = context.getPair(peer)->address().bytes();
    addresses[peer].assign(bytes.begin(), bytes.end());
  }
  return addresses;
}

}  // namespace

absl::StatusOr<std::shared_ptr<gloo::transport::Device>> MakeTcpDevice(const std::string& listen_address) {
  RETURN_IF_ERROR(CheckListenAddress(listen_address));
  IgnoreBrokenPipes();
  std::shared_ptr<gloo::transport::Device> device;
  RETURN_IF_ERROR(CatchGloo(
      [&] { device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(listen_address.c_str())); }));
  return device;
}

// The buffers of one Exchange. Gloo forgets a buffer when it is destroyed, waiting for a read or write in progress.
class TcpMesh::Transfer {
 public:
  Transfer(gloo::transport::Context& context, absl::Span<const PeerTransfer> transfers) {
    for (const PeerTransfer& transfer : transfers) {
      for (const Bytes& bytes : transfer.receives) Add(context, transfer.peer, bytes, receives_);
      for (const Bytes& bytes : transfer.sends) Add(context, transfer.peer, bytes, sends_);
    }
  }

  // Starts receives first, since Gloo sends when the receiver is ready. Sets `peer` to the current peer, for errors.
  void Post(int& peer) {
    for (Posted& posted : receives_) posted.buffer->recv(peer = posted.peer, kTag);
    for (Posted& posted : sends_) posted.buffer->send(peer = posted.peer, kTag);
  }

  // Waits for the next receive (send) in order; false when aborted.
  bool WaitReceive(SteadyTime deadline) {
    return receives_[next_receive_++].buffer->waitRecv(GlooTimeout(TimeLeft(deadline)));
  }
  bool WaitSend(SteadyTime deadline) { return sends_[next_send_++].buffer->waitSend(GlooTimeout(TimeLeft(deadline))); }

  // Called from any thread. Ends waits in progress and later ones.
  void Abort() {
    for (Posted& posted : receives_) posted.buffer->abortWaitRecv();
    for (Posted& posted : sends_) posted.buffer->abortWaitSend();
  }

 private:
  struct Posted {
    int peer = 0;
    std::unique_ptr<UnboundBuffer> buffer;
  };

  static void Add(gloo::transport::Context& context, int peer, const Bytes& bytes, std::vector<Posted>& list) {
    list.push_back({peer, context.createUnboundBuffer(bytes.data, bytes.size)});
  }

  std::vector<Posted> receives_;
  std::vector<Posted> sends_;
  size_t next_receive_ = 0;
  size_t next_send_ = 0;
};

absl::StatusOr<std::unique_ptr<TcpMesh>> TcpMesh::Create(std::shared_ptr<gloo::transport::Device> device,
                                                         std::vector<MeshMember> members, int self,
                                                         absl::Duration timeout) {
  std::shared_ptr<gloo::transport::Context> context;
  RETURN_IF_ERROR(CatchGloo([&] {
    context = device->createContext(self, static_cast<int>(members.size()));
    context->setTimeout(GlooTimeout(timeout));
    for (int peer = 0; peer < static_cast<int>(members.size()); ++peer) {
      if (peer != self) context->createPair(peer);
    }
  }));
  return std::unique_ptr<TcpMesh>(new TcpMesh(std::move(context), std::move(members), self));
}

TcpMesh::TcpMesh(std::shared_ptr<gloo::transport::Context> context, std::vector<MeshMember> members, int self)
    : Mesh(std::move(members), self), context_(std::move(context)), addresses_(ListeningAddresses(*context_, self)) {}

TcpMesh::~TcpMesh() = default;

absl::Status TcpMesh::Connect(int peer, absl::string_view address) {
  absl::Status status =
      CatchGloo([&] { context_->getPair(peer)->connect(std::vector<char>(address.begin(), address.end())); });
  if (status.ok()) return status;
  return absl::UnavailableError(absl::StrCat(MemberName(member(peer)), ": failed to connect: ", status.message()));
}

absl::Status TcpMesh::Exchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                               absl::FunctionRef<void(int peer)> received) {
  absl::Status status = TryExchange(transfers, deadline, received);
  if (status.ok()) return status;
  end_.Set(status);
  // A transfer that was given up halfway leaves unusable connections, which Gloo would poll forever.
  Close();
  return end_.status();
}

absl::Status TcpMesh::TryExchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                                  absl::FunctionRef<void(int peer)> received) {
  Transfer transfer(*context_, transfers);
  const auto unregister = [this](Transfer*) { (void)Register(nullptr); };
  const std::unique_ptr<Transfer, decltype(unregister)> registered(&transfer, unregister);
  RETURN_IF_ERROR(Register(&transfer));

  int posting = self();
  const absl::Status posted = CatchGloo([&] { transfer.Post(posting); });
  if (!posted.ok()) return PeerError(member(posting), deadline, posted);
  for (const PeerTransfer& peer : transfers) {
    RETURN_IF_ERROR(Await(peer.peer, peer.receives.size(), deadline, [&] { return transfer.WaitReceive(deadline); }));
    received(peer.peer);
  }
  for (const PeerTransfer& peer : transfers) {
    RETURN_IF_ERROR(Await(peer.peer, peer.sends.size(), deadline, [&] { return transfer.WaitSend(deadline); }));
  }
  return absl::OkStatus();
}

absl::Status TcpMesh::Await(int peer, size_t count, SteadyTime deadline, absl::FunctionRef<bool()> wait) const {
  bool aborted = false;
  absl::Status status = CatchGloo([&] {
    for (size_t i = 0; i < count && !aborted; ++i) aborted = !wait();
  });
  if (aborted) return end_.status();
  return status.ok() ? status : PeerError(member(peer), deadline, status);
}

absl::Status TcpMesh::Register(Transfer* transfer) {
  absl::MutexLock lock(&mu_);
  transfer_ = transfer;
  return end_.status();
}

void TcpMesh::Abort(const absl::Status& status) {
  end_.Set(status);
  absl::MutexLock lock(&mu_);
  if (transfer_ != nullptr) transfer_->Abort();
}

void TcpMesh::Close() {
  // A wait that times out ends everything in its context; Gloo offers no other way that also wakes Connect.
  char byte = 0;
  (void)CatchGloo(
      [&] { context_->createUnboundBuffer(&byte, sizeof(byte))->waitRecv(nullptr, std::chrono::milliseconds(0)); });
}

}  // namespace paramshard::server
