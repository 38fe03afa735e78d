#include "server/keeper/server_connection.h"

#include <poll.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {

int16_t ServerConnection::events() const { return waiting_.has_value() ? POLLOUT : POLLIN; }

void ServerConnection::Serve(int most) {
  for (int i = 0; i < most && socket_.valid() && SendWaiting(); ++i) {
    absl::StatusOr<KeeperPacket> packet = ReceiveKeeperPacket(socket_.get());
    if (absl::IsDeadlineExceeded(packet.status())) return;
    if (!packet.ok()) return socket_.Reset();
    waiting_ = Handle(*std::move(packet));
    SendWaiting();
    kept_.CloseReleased();
  }
}

// Returns true if no answer waits any more. An answer whose descriptors cannot be passed becomes an error answer; an
// answer to a server that is gone is discarded.
bool ServerConnection::SendWaiting() {
  while (waiting_.has_value()) {
    const absl::StatusOr<std::string> bytes = EncodeKeeperMessage(waiting_->message);
    const absl::Status sent = bytes.ok() ? SendKeeperPacket(socket_.get(), *bytes, waiting_->fds) : bytes.status();
    if (absl::IsDeadlineExceeded(sent)) return false;
    const bool told = sent.ok() || waiting_->fds.empty() || absl::IsUnavailable(sent);
    const uint64_t sequence = waiting_->message.sequence;
    waiting_.reset();
    if (!told) waiting_ = Answer{.message = AnswerOf(sequence, sent), .fds = {}};
  }
  return true;
}

ServerConnection::Answer ServerConnection::Handle(KeeperPacket packet) {
  const uint64_t sequence = SequenceIn(packet.bytes);
  if (!packet.whole.ok()) return {.message = AnswerOf(sequence, packet.whole), .fds = {}};
  const absl::StatusOr<KeeperMessage> request = ParseKeeperMessage(packet.bytes, packet.fds.size());
  if (!request.ok()) return {.message = AnswerOf(sequence, request.status()), .fds = {}};
  if (const absl::Status next = CheckSequence(*request); !next.ok()) {
    return {.message = AnswerOf(sequence, next), .fds = {}};
  }
  if (request->kind == KeeperMessageKind::kTake) return Take(*request);
  if (request->kind == KeeperMessageKind::kLastRestart) return LastRestart(*request);
  if (request->kind == KeeperMessageKind::kRestarts) return Restarts(*request);
  return {.message = AnswerOf(sequence, Carry(*request, std::move(packet))), .fds = {}};
}

absl::Status ServerConnection::CheckSequence(const KeeperMessage& request) {
  if (request.sequence <= last_sequence_) {
    return absl::InvalidArgumentError(
        absl::StrCat("keeper message: want sequence above ", last_sequence_, ", got ", request.sequence));
  }
  last_sequence_ = request.sequence;
  return absl::OkStatus();
}

absl::Status ServerConnection::Carry(const KeeperMessage& request, KeeperPacket packet) {
  switch (request.kind) {
    case KeeperMessageKind::kKeep:
      return kept_.Keep(request.words.front(), std::move(packet.fds.front()));
    case KeeperMessageKind::kDropPrefix:
      kept_.DropPrefix(request.words.front());
      // The server wants to use the memory.
      kept_.CloseReleased();
      return absl::OkStatus();
    case KeeperMessageKind::kReady:
      if (requests_.on_ready) requests_.on_ready(request.words.front());
      return absl::OkStatus();
    case KeeperMessageKind::kRestart:
      if (requests_.on_restart) return requests_.on_restart(CommandIn(request.words));
      return absl::UnimplementedError("restart: not supported by this keeper");
    case KeeperMessageKind::kTake:
    case KeeperMessageKind::kLastRestart:
    case KeeperMessageKind::kRestarts:
    case KeeperMessageKind::kAnswer:
      break;
  }
  return absl::InvalidArgumentError("keeper message: want a request, got an answer");
}

ServerConnection::Answer ServerConnection::Take(const KeeperMessage& request) const {
  DescriptorStore::Page page = kept_.After(request.words.front());
  Answer answer{.message = AnswerOf(request.sequence, absl::OkStatus()), .fds = {}};
  answer.message.more = page.more;
  for (auto& [name, fd] : page.entries) {
    answer.message.words.push_back(std::move(name));
    answer.fds.push_back(fd);
  }
  return answer;
}

ServerConnection::Answer ServerConnection::LastRestart(const KeeperMessage& request) const {
  Answer answer{.message = AnswerOf(request.sequence, absl::OkStatus()), .fds = {}};
  std::string rollback = requests_.rollback ? requests_.rollback() : "";
  if (!rollback.empty()) answer.message.words.push_back(rollback.substr(0, kMaxKeeperTextBytes));
  return answer;
}

ServerConnection::Answer ServerConnection::Restarts(const KeeperMessage& request) const {
  Answer answer{.message = AnswerOf(request.sequence, absl::OkStatus()), .fds = {}};
  answer.message.words = {absl::StrCat(requests_.restarts())};
  return answer;
}

}  // namespace paramshard::server
