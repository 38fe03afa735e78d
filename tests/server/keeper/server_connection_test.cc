// Requests as a broken server may send them. Everything happens in one thread: what is sent is there when Serve looks.

#include "server/keeper/server_connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/kept_store.h"
#include "tests/server/keeper/memory_file.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using test::BytesOf;
using test::MemoryFile;
using testing::ElementsAre;
using testing::HasSubstr;

class ServerConnectionTest : public testing::Test {
 protected:
  ServerConnectionTest() : kept_({.descriptors = 1000}) {
    auto sockets = MakeKeeperSockets().value();
    connection_.emplace(std::move(sockets.first), &kept_,
                        ServerConnection::Requests{
                            .on_ready = [this](absl::string_view version) { version_ = std::string(version); },
                            .on_restart =
                                [this](std::optional<ServerCommand> command) {
                                  command_ = std::move(command);
                                  return absl::OkStatus();
                                },
                        });
    socket_ = std::move(sockets.second);
  }

  std::string Request(KeeperMessageKind kind, std::vector<std::string> words) {
    return EncodeKeeperMessage({.kind = kind, .sequence = ++sequence_, .words = std::move(words)}).value();
  }
  absl::Status Send(const std::string& bytes, const std::vector<int>& fds = {}) {
    return SendKeeperPacket(socket_.get(), bytes, fds);
  }
  absl::StatusOr<KeeperMessage> Receive() {
    absl::StatusOr<KeeperPacket> packet = ReceiveKeeperPacket(socket_.get());
    if (!packet.ok()) return packet.status();
    fds_ = std::move(packet->fds);
    return ParseKeeperMessage(packet->bytes, fds_.size());
  }
  // Returns the keeper's answer to any bytes with any descriptors.
  absl::Status AnswerTo(const std::string& bytes, const std::vector<int>& fds = {}) {
    if (const absl::Status sent = Send(bytes, fds); !sent.ok()) return sent;
    connection_->Serve();
    const absl::StatusOr<KeeperMessage> answer = Receive();
    return answer.ok() ? StatusIn(*answer) : absl::InternalError("no answer");
  }
  absl::Status Keep(const std::string& name, absl::string_view bytes) {
    return AnswerTo(Request(KeeperMessageKind::kKeep, {name}), {MemoryFile(bytes).get()});
  }
  // Names and bytes of all that is kept.
  std::vector<std::string> Kept() const {
    std::vector<std::string> kept;
    for (const auto& [name, fd] : kept_.After("").entries) kept.push_back(absl::StrCat(name, "=", BytesOf(fd)));
    return kept;
  }

  DescriptorStore kept_;
  std::string version_;
  std::optional<ServerCommand> command_;
  std::optional<ServerConnection> connection_;
  wire::FileDescriptor socket_;  // the server's
  uint64_t sequence_ = 0;
  std::vector<wire::FileDescriptor> fds_;  // of the last answer
};

TEST_F(ServerConnectionTest, RequestsAreCarriedOut) {
  ASSERT_OK(Keep("a", "1"));
  ASSERT_OK(Keep("b", "2"));
  ASSERT_OK(AnswerTo(Request(KeeperMessageKind::kTake, {"a"})));
  ASSERT_EQ(fds_.size(), 1U);
  EXPECT_EQ(BytesOf(fds_[0].get()), "2");
  EXPECT_EQ(fcntl(fds_[0].get(), F_GETFD), FD_CLOEXEC);
  ASSERT_OK(AnswerTo(Request(KeeperMessageKind::kDropPrefix, {"a"})));
  EXPECT_THAT(Kept(), ElementsAre("b=2"));
  ASSERT_OK(AnswerTo(Request(KeeperMessageKind::kReady, {"1.2"})));
  EXPECT_EQ(version_, "1.2");
  ASSERT_OK(AnswerTo(Request(KeeperMessageKind::kRestart, {"/bin/other", "--flag"})));
  EXPECT_EQ(command_, (ServerCommand{.program = "/bin/other", .arguments = {"--flag"}}));
}

TEST_F(ServerConnectionTest, WhatIsWrongIsAnsweredAndLeavesWhatIsKeptAsItWas) {
  ASSERT_OK(Keep("a", "1"));
  const wire::FileDescriptor file = MemoryFile("2");
  const auto wrong = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(AnswerTo("x"), wrong);
  EXPECT_THAT(AnswerTo(std::string(64, '\xff')), wrong);
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kKeep, {"a"})), wrong) << "no descriptor";
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kKeep, {"a"}), {file.get(), file.get()}), wrong);
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kKeep, {""}), {file.get()}), wrong);
  const std::string long_name(KeptStore::kMaxNameBytes + 1, 'n');
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kKeep, {long_name}), {file.get()}), wrong);
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kKeep, {"a"}), {socket_.get()}), wrong) << "a socket";
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kDropPrefix, {"a"}), {file.get()}), wrong);
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kAnswer, {})), wrong);
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kKeep, {"a"}), std::vector<int>(253, file.get())), wrong);
  std::string cut = Request(KeeperMessageKind::kDropPrefix, {"a"});
  cut.pop_back();
  EXPECT_THAT(AnswerTo(cut), wrong);
  EXPECT_THAT(AnswerTo(std::string(kMaxKeeperMessageBytes + 1, 'x')), wrong);
  EXPECT_THAT(Kept(), ElementsAre("a=1"));
  EXPECT_OK(Keep("a", "3"));
  EXPECT_THAT(Kept(), ElementsAre("a=3"));
}

TEST_F(ServerConnectionTest, ASequenceNumberIsTakenOnce) {
  const std::string drop = Request(KeeperMessageKind::kDropPrefix, {"a"});
  ASSERT_OK(AnswerTo(drop));
  ASSERT_OK(Keep("a", "1"));
  EXPECT_THAT(AnswerTo(drop), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sequence above 2")));
  sequence_ = -1;  // 0 comes next
  EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kDropPrefix, {"a"})), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Kept(), ElementsAre("a=1"));
}

TEST_F(ServerConnectionTest, AnotherVersionIsToldSo) {
  std::string bytes = Request(KeeperMessageKind::kTake, {""});
  const uint32_t version = kKeeperVersion + 1;
  std::memcpy(bytes.data() + offsetof(KeeperMessageHeader, version), &version, sizeof(version));
  EXPECT_THAT(AnswerTo(bytes), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ServerConnectionTest, NoDescriptorOfAWrongRequestStaysOpen) {
  const wire::FileDescriptor file = MemoryFile("1");
  const int64_t before = OpenDescriptors();
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(AnswerTo(Request(KeeperMessageKind::kReady, {"1"}), std::vector<int>(20, file.get())),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(AnswerTo("x", {file.get()}), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(ServerConnectionTest, WhatIsReplacedOrDroppedIsClosed) {
  const int64_t before = OpenDescriptors();
  for (int i = 0; i < 10; ++i) ASSERT_OK(Keep("a", "1"));
  EXPECT_EQ(OpenDescriptors(), before + 1);
  ASSERT_OK(AnswerTo(Request(KeeperMessageKind::kDropPrefix, {"a"})));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(ServerConnectionTest, AKeeperOutOfDescriptorsSaysSoAndKeepsWhatItHas) {
  ASSERT_OK(Keep("a", "1"));
  const wire::FileDescriptor file = MemoryFile("2");
  const std::string keep = Request(KeeperMessageKind::kKeep, {"b"});
  {
    const DescriptorLimit limit(DescriptorLimit::NoneLeft());
    EXPECT_THAT(AnswerTo(keep, {file.get()}), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_THAT(Kept(), ElementsAre("a=1"));
  EXPECT_OK(Keep("b", "2"));
}

// A server that sends and never reads: the keeper hears no more than it can answer, and goes on when answers are read.
TEST_F(ServerConnectionTest, AFloodIsHeldBackByItsUnreadAnswers) {
  int sent = 0;
  for (; connection_->events() == POLLIN && sent < 100'000; ++sent) {
    ASSERT_OK(Send(Request(KeeperMessageKind::kReady, {absl::StrCat(sent)})));
    connection_->Serve();
  }
  ASSERT_EQ(connection_->events(), POLLOUT);
  const std::string version = version_;
  int waiting = 0;
  for (; Send(Request(KeeperMessageKind::kReady, {"late"})).ok(); ++waiting) connection_->Serve();
  EXPECT_EQ(version_, version);

  int answers = 0;
  for (absl::StatusOr<KeeperMessage> answer = Receive(); answer.ok(); answer = Receive()) {
    EXPECT_EQ(answer->sequence, static_cast<uint64_t>(++answers));
    connection_->Serve();
  }
  EXPECT_EQ(answers, sent + waiting);
  EXPECT_EQ(version_, "late");
}

TEST_F(ServerConnectionTest, OnlySoManyRequestsAreServedAtOnce) {
  for (int i = 1; i <= 10; ++i) ASSERT_OK(Send(Request(KeeperMessageKind::kReady, {absl::StrCat(i)})));
  connection_->Serve(4);
  EXPECT_EQ(version_, "4");
  connection_->Serve(4);
  EXPECT_EQ(version_, "8");
}

TEST_F(ServerConnectionTest, WhatAServerHadSentBeforeItsEndIsHeard) {
  ASSERT_OK(Send(Request(KeeperMessageKind::kKeep, {"a"}), {MemoryFile("1").get()}));
  socket_.Reset();
  connection_->Serve();
  EXPECT_THAT(Kept(), ElementsAre("a=1"));
  EXPECT_EQ(connection_->fd(), -1);
  connection_->Serve();
}

// The kernel tells of unread answers first, as an error.
TEST_F(ServerConnectionTest, WhatAServerHadSentIsHeardThoughItReadNoAnswers) {
  ASSERT_OK(Send(Request(KeeperMessageKind::kReady, {"1"})));
  connection_->Serve();
  ASSERT_OK(Send(Request(KeeperMessageKind::kKeep, {"a"}), {MemoryFile("1").get()}));
  ASSERT_OK(Send(Request(KeeperMessageKind::kKeep, {"b"}), {MemoryFile("2").get()}));
  socket_.Reset();
  connection_->Serve();
  EXPECT_THAT(Kept(), ElementsAre("a=1", "b=2"));
  EXPECT_EQ(connection_->fd(), -1);
}

TEST_F(ServerConnectionTest, AnEmptyPacketEndsTheConnection) {
  ASSERT_EQ(send(socket_.get(), "", 0, MSG_NOSIGNAL), 0);
  connection_->Serve();
  EXPECT_EQ(connection_->fd(), -1);
}

}  // namespace
}  // namespace paramshard::server
