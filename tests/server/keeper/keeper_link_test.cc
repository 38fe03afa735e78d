#include "server/keeper/keeper_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "server/keeper/descriptor_store.h"
#include "server/keeper/server_connection.h"
#include "tests/server/keeper/memory_file.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using test::BytesOf;
using test::MemoryFile;
using testing::HasSubstr;

class KeeperLinkTest : public testing::Test {
 protected:
  KeeperLinkTest() {
    auto sockets = MakeKeeperSockets().value();
    keeper_ = std::move(sockets.first);
    server_ = std::move(sockets.second);
  }
  ~KeeperLinkTest() override {
    server_.Reset();
    if (thread_.joinable()) thread_.join();
  }

  // A keeper on a thread, until the link is gone.
  void Serve(ServerConnection connection) {
    thread_ = std::thread([connection = std::move(connection)]() mutable {
      while (connection.fd() >= 0) {
        pollfd polled{.fd = connection.fd(), .events = connection.events(), .revents = 0};
        poll(&polled, 1, -1);
        connection.Serve();
      }
    });
  }
  void Serve() { Serve({std::move(keeper_), &kept_, {}}); }
  // A keeper that gives the same answers in turn to any requests.
  void AnswerWith(std::vector<KeeperMessage> answers) {
    thread_ = std::thread([this, answers = std::move(answers)] {
      for (const KeeperMessage& answer : answers) {
        pollfd polled{.fd = keeper_.get(), .events = POLLIN, .revents = 0};
        poll(&polled, 1, -1);
        if (!ReceiveKeeperPacket(keeper_.get()).ok()) return;
        const std::vector<int> fds(answer.code == absl::StatusCode::kOk ? answer.words.size() : 0, STDIN_FILENO);
        PARAMSHARD_CHECK(SendKeeperPacket(keeper_.get(), EncodeKeeperMessage(answer).value(), fds).ok());
      }
    });
  }
  static bool HungUp(const KeeperLink& link) {
    pollfd polled{.fd = link.fd(), .events = 0, .revents = 0};
    return poll(&polled, 1, 0) == 1 && (polled.revents & POLLHUP) != 0;
  }

  DescriptorStore kept_{{.descriptors = 1000}};
  wire::FileDescriptor keeper_;
  wire::FileDescriptor server_;
  std::thread thread_;
};

TEST_F(KeeperLinkTest, AKeeperThatIsGoneIsUnavailableAndToldByTheDescriptor) {
  KeeperLink link(std::move(server_));
  EXPECT_FALSE(HungUp(link));
  keeper_.Reset();
  EXPECT_TRUE(HungUp(link));
  EXPECT_THAT(link.Keep("a", MemoryFile("1").get()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(link.TakeAll(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(link.DropPrefix("a"), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(link.ReportReady("1"), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(KeeperLinkTest, AKeeperThatDoesNotAnswerIsWaitedForOnlySoLong) {
  KeeperLink link(std::move(server_), absl::Milliseconds(1), absl::Milliseconds(1));
  EXPECT_THAT(link.Keep("a", MemoryFile("1").get()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  // Until the socket is full, and beyond.
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(link.DropPrefix(std::string(10'000, 'a')), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
}

TEST_F(KeeperLinkTest, AnswersThatComeTooLateArePassedOver) {
  KeeperLink link(std::move(server_), absl::Milliseconds(200), absl::Milliseconds(200));
  ServerConnection connection(std::move(keeper_), &kept_, {});
  EXPECT_THAT(link.Keep("a", MemoryFile("1").get()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(link.DropPrefix(""), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(link.Keep("b", MemoryFile("2").get()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  connection.Serve();
  EXPECT_EQ(kept_.size(), 1U);
  std::atomic<bool> done = false;
  std::thread keeper([&] {
    while (!done) {
      pollfd polled{.fd = connection.fd(), .events = POLLIN, .revents = 0};
      poll(&polled, 1, 10);
      connection.Serve();
    }
  });
  absl::StatusOr<KeptStore::Descriptors> taken = link.TakeAll();
  while (absl::IsDeadlineExceeded(taken.status())) taken = link.TakeAll();
  done = true;
  keeper.join();
  ASSERT_OK(taken);
  ASSERT_EQ(taken->size(), 1U);
  EXPECT_EQ(BytesOf(taken->at("b").get()), "2");
}

TEST_F(KeeperLinkTest, ADropIsWaitedForLongerAndSoIsATurnBehindIt) {
  constexpr absl::Duration kShort = absl::Milliseconds(300);
  KeeperLink link(std::move(server_), kShort);
  std::thread drop([&link] { EXPECT_OK(link.DropPrefix("a")); });
  // The request was sent, and is not read.
  pollfd asked{.fd = keeper_.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&asked, 1, -1), 1);
  std::thread keep([&link] { EXPECT_OK(link.Keep("b", MemoryFile("2").get())); });
  absl::SleepFor(2 * kShort);
  Serve();
  drop.join();
  keep.join();
  EXPECT_EQ(kept_.size(), 1U);
}

// Both directions are full: one end has to read first, and the keeper does not.
TEST_F(KeeperLinkTest, AKeeperWhoseAnswersNobodyHasReadHearsTheNextCall) {
  KeeperLink link(std::move(server_));
  ServerConnection connection(std::move(keeper_), &kept_, {});
  while (SendKeeperPacket(link.fd(), "nonsense", {}).ok()) connection.Serve(1);
  ASSERT_EQ(connection.events(), POLLOUT);
  Serve(std::move(connection));
  EXPECT_OK(link.DropPrefix("a"));
}

// A lock's descriptor is closed after memory that takes a while to be freed.
TEST_F(KeeperLinkTest, ADropIsThroughWhenTheMemoryIsFree) {
  const std::string path = absl::StrCat(testing::TempDir(), "/lock-", getpid());
  const wire::FileDescriptor other(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  wire::FileDescriptor locked(open(path.c_str(), O_RDWR | O_CLOEXEC));
  unlink(path.c_str());
  ASSERT_EQ(flock(locked.get(), LOCK_EX | LOCK_NB), 0);
  wire::FileDescriptor large = MemoryFile("");
  ASSERT_EQ(posix_fallocate(large.get(), 0, int64_t{256} << 20), 0);
  ASSERT_OK(kept_.Keep("m/1", std::move(large)));
  ASSERT_OK(kept_.Keep("m/2", std::move(locked)));
  Serve();
  KeeperLink link(std::move(server_));
  EXPECT_NE(flock(other.get(), LOCK_EX | LOCK_NB), 0);
  ASSERT_OK(link.DropPrefix("m/"));
  EXPECT_EQ(flock(other.get(), LOCK_EX | LOCK_NB), 0);
}

TEST_F(KeeperLinkTest, NamesInNoOrderEndTheTaking) {
  AnswerWith({{.sequence = 1, .more = true, .words = {"b"}}, {.sequence = 2, .more = true, .words = {"a"}}});
  KeeperLink link(std::move(server_));
  EXPECT_THAT(link.TakeAll(), StatusIs(absl::StatusCode::kInternal, HasSubstr("order")));
}

TEST_F(KeeperLinkTest, EmptyPagesWithoutAnEndAreNotFollowed) {
  AnswerWith({{.sequence = 1, .more = true}});
  KeeperLink link(std::move(server_));
  EXPECT_THAT(link.TakeAll(), StatusIs(absl::StatusCode::kInternal));
}

TEST_F(KeeperLinkTest, WhatIsNoAnswerIsRefused) {
  AnswerWith({{.kind = KeeperMessageKind::kReady, .sequence = 1, .words = {"1"}}});
  KeeperLink link(std::move(server_));
  EXPECT_THAT(link.DropPrefix("a"), testing::Not(IsOk()));
}

TEST_F(KeeperLinkTest, ManyThreadsTakeTurns) {
  Serve();
  {
    KeeperLink link(std::move(server_));
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&link, thread] {
        for (int i = 0; i < 20; ++i) {
          const std::string name = absl::StrCat(thread, "/", i);
          EXPECT_OK(link.Keep(name, MemoryFile(name).get()));
          if (i % 5 == 4) {
            EXPECT_OK(link.TakeAll());
          }
        }
        EXPECT_OK(link.DropPrefix(absl::StrCat(thread, "/1")));
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_OK_AND_ASSIGN(const KeptStore::Descriptors taken, link.TakeAll());
    EXPECT_EQ(taken.size(), 8U * 9);
    for (const auto& [name, fd] : taken) EXPECT_EQ(BytesOf(fd.get()), name);
  }
}

TEST_F(KeeperLinkTest, AServerOutOfDescriptorsMayTakeAllLater) {
  for (int i = 0; i < 20; ++i) ASSERT_OK(kept_.Keep(absl::StrCat(i), MemoryFile("1")));
  Serve();
  KeeperLink link(std::move(server_));
  {
    const DescriptorLimit limit(DescriptorLimit::NoneLeft() + 10);
    EXPECT_THAT(link.TakeAll(), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_THAT(link.TakeAll(), IsOkAndHolds(testing::SizeIs(20)));
}

TEST_F(KeeperLinkTest, TheEnvironmentNamesTheSocketOnce) {
  ASSERT_EQ(unsetenv(KeeperLink::kVariable), 0);
  EXPECT_THAT(KeeperLink::FromEnvironment(), StatusIs(absl::StatusCode::kNotFound));
  const int fd = server_.Release();
  ASSERT_EQ(fcntl(fd, F_SETFD, 0), 0);
  ASSERT_EQ(setenv(KeeperLink::kVariable, absl::StrCat(fd).c_str(), 1), 0);
  ASSERT_OK_AND_ASSIGN(const auto link, KeeperLink::FromEnvironment());
  EXPECT_EQ(link->fd(), fd);
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  EXPECT_THAT(KeeperLink::FromEnvironment(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(KeeperLinkTest, AVariableThatNamesNoSuchSocketIsRefused) {
  const wire::FileDescriptor file = MemoryFile("");
  for (const std::string& value : {std::string(), std::string("x"), std::string("-1"), absl::StrCat(file.get())}) {
    ASSERT_EQ(setenv(KeeperLink::kVariable, value.c_str(), 1), 0);
    EXPECT_THAT(KeeperLink::FromEnvironment(), StatusIs(absl::StatusCode::kInvalidArgument)) << value;
    EXPECT_EQ(std::getenv(KeeperLink::kVariable), nullptr);
  }
}

}  // namespace
}  // namespace paramshard::server
