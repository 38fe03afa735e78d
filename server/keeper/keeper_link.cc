#include "server/keeper/keeper_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

absl::Status GoneError(absl::string_view why) { return absl::UnavailableError(absl::StrCat("keeper exited: ", why)); }

// Waits for events of the socket, or its hang-up, which the next call on it reports.
absl::Status AwaitEvents(int socket, int16_t events, SteadyTime deadline) {
  const absl::Duration left = TimeLeft(deadline);
  if (left <= absl::ZeroDuration()) {
    return absl::DeadlineExceededError("keeper: timed out waiting for an answer; the request may still be carried out");
  }
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
  pollfd polled{.fd = socket, .events = events, .revents = 0};
  const int count =
      poll(&polled, 1, static_cast<int>(std::min<int64_t>(milliseconds, std::numeric_limits<int>::max())));
  return count >= 0 || errno == EINTR ? absl::OkStatus() : GoneError(strerror(errno));
}

bool IsPacketSocket(int fd) {
  int type = 0;
  int domain = 0;
  socklen_t size = sizeof(int);
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET &&
         getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeeperLink>> KeeperLink::FromEnvironment() {
  const char* const value = std::getenv(kVariable);
  if (value == nullptr) return absl::NotFoundError(absl::StrCat("keeper: ", kVariable, " is not set"));
  int fd = -1;
  const bool is_socket = absl::SimpleAtoi(value, &fd) && IsPacketSocket(fd);
  unsetenv(kVariable);
  if (!is_socket) {
    return absl::InvalidArgumentError(absl::StrCat("keeper: ", kVariable, " is not the socket of a keeper"));
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return std::make_unique<KeeperLink>(wire::FileDescriptor(fd));
}

absl::Status KeeperLink::Keep(absl::string_view name, int fd) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep: want a name of 1 to ", kMaxNameBytes, " bytes, got ", name.size()));
  }
  return Call(KeeperMessageKind::kKeep, {std::string(name)}, {&fd, 1}).status();
}

absl::Status KeeperLink::DropPrefix(absl::string_view prefix) {
  return Call(KeeperMessageKind::kDropPrefix, {std::string(prefix)}).status();
}

absl::StatusOr<KeptStore::Descriptors> KeeperLink::Take(absl::string_view prefix) {
  Descriptors taken;
  Answer page{.words = {}, .fds = {}, .more = true};
  std::string last(prefix);
  while (page.more) {
    ASSIGN_OR_RETURN(page, Call(KeeperMessageKind::kTake, {last}));
    if (page.fds.size() != page.words.size()) return absl::InternalError("keeper: want one descriptor for each name");
    for (size_t i = 0; i < page.words.size(); ++i) {
      // Without this check the pages could be endless.
      if (page.words[i] <= last) return absl::InternalError("keeper: want names in ascending order");
      last = page.words[i];
      if (!absl::StartsWith(last, prefix)) return taken;  // later names do not, either
      taken[last] = std::move(page.fds[i]);
    }
    if (page.more && page.words.empty()) {
      return absl::InternalError("keeper: want names in a page that is not the last, got none");
    }
  }
  return taken;
}

absl::Status KeeperLink::ReportReady(absl::string_view version) {
  return Call(KeeperMessageKind::kReady, {std::string(version)}).status();
}

absl::Status KeeperLink::RequestRestart(const std::optional<ServerCommand>& command) {
  return Call(KeeperMessageKind::kRestart, WordsOf(command)).status();
}

absl::StatusOr<std::string> KeeperLink::LastRestart() {
  ASSIGN_OR_RETURN(const Answer answer, Call(KeeperMessageKind::kLastRestart, {}));
  return answer.words.empty() ? std::string() : answer.words.front();
}

absl::StatusOr<int64_t> KeeperLink::CountRestarts() {
  ASSIGN_OR_RETURN(const Answer answer, Call(KeeperMessageKind::kRestarts, {}));
  int64_t count = 0;
  if (answer.words.size() == 1 && absl::SimpleAtoi(answer.words.front(), &count)) return count;
  return absl::InternalError("keeper: want a number of restarts");
}

absl::StatusOr<KeeperLink::Answer> KeeperLink::Call(KeeperMessageKind kind, std::vector<std::string> words,
                                                    absl::Span<const int> fds) {
  const bool drops = kind == KeeperMessageKind::kDropPrefix;
  SteadyTime deadline;
  KeeperMessage request{.kind = kind, .words = std::move(words)};
  {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(deadline, AwaitTurn(drops ? drop_timeout_ : timeout_));
    busy_ = true;
    if (drops) drop_until_ = deadline;
    request.sequence = ++last_sequence_;
  }
  absl::StatusOr<Answer> answer = TakeTurn(request, fds, deadline);
  absl::MutexLock lock(&mu_);
  busy_ = false;
  if (drops) {
    drop_until_ = SteadyTime::min();
    ++drops_;
  }
  free_.SignalAll();
  return answer;
}

// A call that has waited for a drop gets its full timeout afterwards.
absl::StatusOr<SteadyTime> KeeperLink::AwaitTurn(absl::Duration timeout) {
  const SteadyTime latest = SteadyDeadline(drop_timeout_);
  SteadyTime deadline = SteadyDeadline(timeout);
  while (busy_) {
    const SteadyTime until = std::max(deadline, std::min(drop_until_, latest));
    if (SteadyNow() >= until) {
      return absl::DeadlineExceededError("keeper: timed out waiting for other calls");
    }
    const int64_t drops = drops_;
    free_.WaitUntil(&mu_, until);
    if (drops_ != drops && SteadyNow() < latest) deadline = SteadyDeadline(timeout);
  }
  return deadline;
}

absl::StatusOr<KeeperLink::Answer> KeeperLink::TakeTurn(const KeeperMessage& request, absl::Span<const int> fds,
                                                        SteadyTime deadline) {
  ASSIGN_OR_RETURN(const std::string bytes, EncodeKeeperMessage(request));
  RETURN_IF_ERROR(Send(bytes, fds, deadline));
  return AwaitAnswer(request.sequence, deadline);
}

// Discards what can be read meanwhile, which are answers to calls that have timed out: a keeper whose answers are not
// read handles no further requests.
absl::Status KeeperLink::Send(const std::string& bytes, absl::Span<const int> fds, SteadyTime deadline) const {
  while (true) {
    const absl::Status sent = SendKeeperPacket(socket_.get(), bytes, fds);
    if (absl::IsUnavailable(sent)) return GoneError(sent.message());
    if (!absl::IsDeadlineExceeded(sent)) return sent;
    RETURN_IF_ERROR(AwaitEvents(socket_.get(), POLLIN | POLLOUT, deadline));
    (void)ReceiveKeeperPacket(socket_.get());
  }
}

// Skips answers to calls that have timed out.
absl::StatusOr<KeeperLink::Answer> KeeperLink::AwaitAnswer(uint64_t sequence, SteadyTime deadline) const {
  while (true) {
    absl::StatusOr<KeeperPacket> packet = ReceiveKeeperPacket(socket_.get());
    if (absl::IsUnavailable(packet.status())) return GoneError(packet.status().message());
    if (absl::IsDeadlineExceeded(packet.status())) {
      RETURN_IF_ERROR(AwaitEvents(socket_.get(), POLLIN, deadline));
      continue;
    }
    if (SequenceIn(packet->bytes) != sequence) continue;
    RETURN_IF_ERROR(packet->whole);
    ASSIGN_OR_RETURN(KeeperMessage answer, ParseKeeperMessage(packet->bytes, packet->fds.size()));
    if (answer.kind != KeeperMessageKind::kAnswer)
      return absl::InternalError("keeper: want an answer, got another message");
    RETURN_IF_ERROR(StatusIn(answer));
    return Answer{.words = std::move(answer.words), .fds = std::move(packet->fds), .more = answer.more};
  }
}

}  // namespace paramshard::server
