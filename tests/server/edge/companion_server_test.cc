#include "server/edge/companion_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/edge/companion_client.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr absl::Duration kTimeout = absl::Seconds(30);
// A user id that no machine uses.
constexpr uid_t kForeignUser = 65534;

// Tokens that the server has reported as gone.
class GoneTokens {
 public:
  void Add(const std::string& token) {
    absl::MutexLock lock(&mu_);
    ++counts_[token];
  }
  bool Await(const std::string& token) {
    absl::MutexLock lock(&mu_);
    const auto gone = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return counts_.contains(token); };
    return mu_.AwaitWithTimeout(absl::Condition(&gone), kTimeout) && counts_[token] == 1;
  }
  int64_t count() {
    absl::MutexLock lock(&mu_);
    return static_cast<int64_t>(counts_.size());
  }
  bool AwaitCount(int64_t expected) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return static_cast<int64_t>(counts_.size()) == expected;
    };
    return mu_.AwaitWithTimeout(absl::Condition(&reached), kTimeout);
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mu_);
};

// System calls that fail as told, and are recorded.
class FaultySystem : public SystemCalls {
 public:
  // The next calls end with these errors, one each.
  void FailWaits(std::vector<int> errors) {
    absl::MutexLock lock(&mu_);
    wait_errors_ = std::move(errors);
  }
  void FailAccepts(std::vector<int> errors) {
    absl::MutexLock lock(&mu_);
    accept_errors_ = std::move(errors);
  }
  // Every Accept fails with this error until the server's thread has slept so often. The thread itself ends the fault,
  // between two calls: otherwise the retry after a failure would accept a connection only to reject it.
  void FailAcceptsForSleeps(int error, int sleeps) {
    absl::MutexLock lock(&mu_);
    every_accept_ = error;
    sleeps_left_ = sleeps;
  }
  // Keeps Accept from returning until it is opened.
  void SetClosed(bool closed) {
    absl::MutexLock lock(&mu_);
    closed_ = closed;
  }

  int Accept(int listener) override {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](bool* closed) { return !*closed; }, &closed_));
    calls_ += 'a';
    errno = every_accept_ != 0 ? every_accept_ : TakeFirst(accept_errors_);
    return errno != 0 ? -1 : SystemCalls::Accept(listener);
  }

  // Users that the next connections claim to be of.
  void NameUsers(std::vector<uid_t> users) {
    absl::MutexLock lock(&mu_);
    users_.assign(users.begin(), users.end());
  }
  absl::StatusOr<PeerCredentials> Credentials(int socket) override {
    ASSIGN_OR_RETURN(PeerCredentials peer, SystemCalls::Credentials(socket));
    absl::MutexLock lock(&mu_);
    if (users_.empty()) return peer;
    peer.uid = users_.front();
    users_.pop_front();
    return peer;
  }

  // `w`: a wait that ended with events; `t`: a wait that timed out; `l`: a wait whose timeout had passed before it
  // began, as on a loaded machine.
  int Wait(int epoll, absl::Span<epoll_event> events, int timeout_milliseconds) override {
    {
      absl::MutexLock lock(&mu_);
      if (const int error = TakeFirst(wait_errors_); error != 0) {
        errno = error;
        return -1;
      }
    }
    const int count = SystemCalls::Wait(epoll, events, timeout_milliseconds);
    absl::MutexLock lock(&mu_);
    calls_ += count > 0 ? 'w' : timeout_milliseconds > 0 ? 't' : 'l';
    if (calls_.back() == 't' && sleeps_left_ > 0 && --sleeps_left_ == 0) every_accept_ = 0;
    return count;
  }

  // Returns the calls so far, once they contain `count` calls of one kind.
  std::string AwaitCalls(char kind, int64_t count) {
    absl::MutexLock lock(&mu_);
    const auto made = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return std::count(calls_.begin(), calls_.end(), kind) >= count;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&made), kTimeout));
    return calls_;
  }
  std::string calls() { return AwaitCalls('w', 0); }
  bool AwaitErrorsTaken() {
    absl::MutexLock lock(&mu_);
    const auto taken = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return wait_errors_.empty() && accept_errors_.empty(); };
    return mu_.AwaitWithTimeout(absl::Condition(&taken), kTimeout);
  }

 private:
  static int TakeFirst(std::vector<int>& errors) {
    if (errors.empty()) return 0;
    const int first = errors.front();
    errors.erase(errors.begin());
    return first;
  }

  absl::Mutex mu_;
  std::vector<int> wait_errors_ ABSL_GUARDED_BY(mu_);
  std::vector<int> accept_errors_ ABSL_GUARDED_BY(mu_);
  int every_accept_ ABSL_GUARDED_BY(mu_) = 0;
  int sleeps_left_ ABSL_GUARDED_BY(mu_) = 0;  // until it is 0 again
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::string calls_ ABSL_GUARDED_BY(mu_);
  std::deque<uid_t> users_ ABSL_GUARDED_BY(mu_);
};

class CompanionServerTest : public testing::Test {
 protected:
  CompanionServerTest() { Restart(); }

  CompanionServer::Options Options() {
    return {.path = path_,
            .allowed_users = {geteuid()},
            .on_gone = [this](const std::string& token) { gone_.Add(token); },
            .system = &system_};
  }
  // Restarts the server with the usual options, changed by `change`.
  template <typename Change>
  void Restart(Change change) {
    server_.reset();
    CompanionServer::Options options = Options();
    change(options);
    auto server = CompanionServer::Start(std::move(options));
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  void Restart() {
    Restart([](auto&) {});
  }

  CompanionClient Connect() {
    absl::StatusOr<CompanionClient> client = CompanionClient::Connect(path_);
    EXPECT_OK(client);
    return *std::move(client);
  }
  // Sends a packet instead of the hello; returns the reason of the refusal, after which the connection is closed.
  std::string RefusalOf(absl::Span<const uint8_t> bytes, absl::Span<const int> fds) {
    CompanionClient client = Connect();
    EXPECT_OK(client.Send(bytes, fds));
    const absl::Status refusal = client.ReceiveRefusal();
    EXPECT_TRUE(client.AwaitClosed());
    EXPECT_THAT(refusal, StatusIs(absl::StatusCode::kInvalidArgument));
    return std::string(refusal.message());
  }

  // A process that has said hello, written its token to the board, and done `then`; it stays until it is killed.
  test::ChildProcess RunTrainer(const std::function<void(test::Board&)>& then) {
    return test::ChildProcess::Run([this, &then](test::Board& board) -> absl::Status {
      ASSIGN_OR_RETURN(CompanionClient client, CompanionClient::Connect(path_));
      ASSIGN_OR_RETURN(const std::string token, client.SayHello());
      token.copy(board.text, token.size());
      then(board);
      pause();
      return absl::OkStatus();
    });
  }
  // A process that keeps many connections open, and does something with each. Returns when it has them.
  test::ChildProcess RunCrowd(int connections, const std::function<void(CompanionClient&)>& with_each) {
    test::ChildProcess crowd = test::ChildProcess::Run([&](test::Board& board) -> absl::Status {
      const DescriptorLimit enough(connections + 100);
      std::vector<CompanionClient> clients;
      for (int i = 0; i < connections; ++i) {
        ASSIGN_OR_RETURN(CompanionClient client, CompanionClient::Connect(path_));
        with_each(client);
        clients.push_back(std::move(client));
      }
      test::Reach(board, 0, 1);
      pause();
      return absl::OkStatus();
    });
    EXPECT_TRUE(crowd.AwaitNumber(0, 1));
    return crowd;
  }
  static absl::Status BecomeForeign() {
    return setuid(kForeignUser) == 0 ? absl::OkStatus() : absl::InternalError("setuid failed");
  }

  const test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/handoff.sock";
  GoneTokens gone_;
  FaultySystem system_;
  std::unique_ptr<CompanionServer> server_;
};

// --- Tokens ---

TEST_F(CompanionServerTest, AHelloIsWelcomedWithAToken) {
  CompanionClient client = Connect();
  ASSERT_OK_AND_ASSIGN(const std::string token, client.SayHello());
  EXPECT_THAT(token, MatchesRegex("[0-9a-f]{32}"));
  ASSERT_OK_AND_ASSIGN(const CompanionServer::Peer peer, server_->Authenticate(token));
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, geteuid());
}

TEST_F(CompanionServerTest, EveryConnectionHasATokenOfItsOwn) {
  CompanionClient first = Connect();
  CompanionClient second = Connect();
  ASSERT_OK_AND_ASSIGN(const std::string one, first.SayHello());
  ASSERT_OK_AND_ASSIGN(const std::string two, second.SayHello());
  EXPECT_NE(one, two);
}

TEST_F(CompanionServerTest, TheTokenDiesWithItsSocket) {
  CompanionClient client = Connect();
  CompanionClient other = Connect();
  ASSERT_OK_AND_ASSIGN(const std::string token, client.SayHello());
  ASSERT_OK_AND_ASSIGN(const std::string kept, other.SayHello());
  client.Close();
  EXPECT_TRUE(gone_.Await(token));
  EXPECT_THAT(server_->Authenticate(token), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_OK(server_->Authenticate(kept));
  EXPECT_EQ(gone_.count(), 1);
}

TEST_F(CompanionServerTest, AForgedTokenIsRefused) {
  CompanionClient client = Connect();
  ASSERT_OK_AND_ASSIGN(std::string token, client.SayHello());
  token[5] = token[5] == '0' ? '1' : '0';
  EXPECT_THAT(server_->Authenticate(token), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("open companion")));
  for (const std::string& forged : {std::string(), std::string(wire::kTokenBytes, '0'), std::string(1 << 20, 'x'),
                                    token.substr(0, 31), std::string(32, '\0')}) {
    EXPECT_THAT(server_->Authenticate(forged), StatusIs(absl::StatusCode::kUnauthenticated));
  }
}

TEST_F(CompanionServerTest, AMissingTokenIsSaidToBeMissing) {
  EXPECT_THAT(server_->Authenticate(""), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("got none")));
}

// --- Refusals ---

TEST_F(CompanionServerTest, ASecondHelloEndsTheConnection) {
  CompanionClient client = Connect();
  ASSERT_OK_AND_ASSIGN(const std::string token, client.SayHello());
  EXPECT_THAT(client.SayHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("after the hello")));
  EXPECT_TRUE(client.AwaitClosed());
  EXPECT_TRUE(gone_.Await(token));
}

TEST_F(CompanionServerTest, SomebodyElsesPidfdIsRefused) {
  CompanionClient client = Connect();
  EXPECT_THAT(client.SayHello(getppid()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a pidfd of process")));
  EXPECT_TRUE(client.AwaitClosed());
  EXPECT_EQ(gone_.count(), 0) << "it had no token";
}

TEST_F(CompanionServerTest, MalformedHellosAreRefusedWithAReason) {
  const wire::FileDescriptor event(eventfd(0, EFD_CLOEXEC));
  const wire::CompanionHello hello;
  const auto bytes = wire::CompanionBytes(hello);
  EXPECT_THAT(RefusalOf(bytes, {event.get()}), HasSubstr("another kind of descriptor"));
  EXPECT_THAT(RefusalOf(bytes, {}), HasSubstr("want descriptors 1, got 0"));
  EXPECT_THAT(RefusalOf(bytes, {event.get(), event.get()}), HasSubstr("want descriptors 1, got 2"));
  EXPECT_THAT(RefusalOf(bytes.subspan(0, 7), {}), HasSubstr("at least 16 bytes"));
  EXPECT_THAT(RefusalOf(std::vector<uint8_t>(4096), {}), HasSubstr("at most 512 bytes"));
  wire::CompanionHello other;
  other.header.version = 9;
  EXPECT_THAT(RefusalOf(wire::CompanionBytes(other), {event.get()}), HasSubstr("version"));
  EXPECT_EQ(server_->connection_count(), 0);
}

TEST_F(CompanionServerTest, AConnectionThatNeverSaysHelloIsDropped) {
  Restart([](auto& options) { options.hello_timeout = absl::Milliseconds(20); });
  CompanionClient client = Connect();
  EXPECT_THAT(client.ReceiveRefusal(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("companion hello: timed out")));
  EXPECT_TRUE(client.AwaitClosed());
}

TEST_F(CompanionServerTest, AConnectionThatSaidHelloMayBeSilent) {
  Restart([](auto& options) { options.hello_timeout = absl::Milliseconds(20); });
  std::optional<CompanionClient> patient;
  absl::StatusOr<std::string> token;
  do {  // on a busy machine a hello may come too late
    token = patient.emplace(Connect()).SayHello();
  } while (absl::IsDeadlineExceeded(token.status()));
  ASSERT_OK(token.status());
  // The server drops another connection meanwhile, so the timeout has passed.
  EXPECT_THAT(Connect().ReceiveRefusal(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_OK(server_->Authenticate(*token));
}

TEST_F(CompanionServerTest, ConnectionsHaveALimit) {
  Restart([](auto& options) { options.max_connections = 2; });
  std::vector<CompanionClient> clients;
  for (int i = 0; i < 2; ++i) EXPECT_OK(clients.emplace_back(Connect()).SayHello());
  EXPECT_THAT(Connect().SayHello(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 2 companion connections")));
  clients.clear();
  EXPECT_TRUE(gone_.AwaitCount(2));
  EXPECT_OK(Connect().SayHello());
}

TEST_F(CompanionServerTest, AForeignUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Restart([](auto& options) { options.allowed_users = {geteuid(), 12345}; });
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  test::ChildProcess child = test::ChildProcess::Run([this](test::Board&) -> absl::Status {
    RETURN_IF_ERROR(BecomeForeign());
    ASSIGN_OR_RETURN(const CompanionClient client, CompanionClient::Connect(path_));
    const absl::Status refusal = client.ReceiveRefusal();
    return client.AwaitClosed() ? refusal : absl::InternalError("it was not closed");
  });
  EXPECT_THAT(child.Await(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("user 65534 is not the daemon's")));
}

TEST_F(CompanionServerTest, ANamedUserIsWelcome) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Restart([](auto& options) { options.allowed_users = {geteuid(), kForeignUser}; });
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  test::ChildProcess child = test::ChildProcess::Run([this](test::Board&) -> absl::Status {
    RETURN_IF_ERROR(BecomeForeign());
    ASSIGN_OR_RETURN(CompanionClient client, CompanionClient::Connect(path_));
    return client.SayHello().status();
  });
  EXPECT_OK(child.Await());
}

TEST_F(CompanionServerTest, WithoutNamedUsersOthersDoNotReachTheSocket) {
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// An unread hello must not turn the refusal into a reset connection.
TEST_F(CompanionServerTest, WhoIsRefusedLearnsWhyAlthoughItsHelloIsUnread) {
  Restart([](auto& options) { options.allowed_users = {geteuid() + 1}; });
  for (int i = 0; i < 20; ++i) {
    system_.SetClosed(true);
    CompanionClient client = Connect();
    ASSERT_OK(client.Send(wire::CompanionBytes(wire::CompanionHello{}), {}));
    system_.SetClosed(false);
    EXPECT_THAT(client.ReceiveRefusal(), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--allow-user")));
  }
}

TEST_F(CompanionServerTest, WhoSaysNoHelloGivesWayToOthers) {
  Restart([](auto& options) { options.max_connections = 2; });
  const CompanionClient oldest = Connect();
  const CompanionClient other = Connect();
  EXPECT_OK(Connect().SayHello());
  EXPECT_THAT(oldest.ReceiveRefusal(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 2")));
}

TEST_F(CompanionServerTest, ANamedUserDoesNotKeepTheDaemonsOwnOut) {
  Restart([](auto& options) {
    options.allowed_users = {geteuid(), kForeignUser};
    options.max_connections = 4;
  });
  system_.NameUsers({kForeignUser, kForeignUser, kForeignUser});
  std::vector<CompanionClient> clients;
  for (int i = 0; i < 2; ++i) EXPECT_OK(clients.emplace_back(Connect()).SayHello());
  EXPECT_THAT(Connect().SayHello(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("half of them")));
  for (int i = 0; i < 2; ++i) EXPECT_OK(clients.emplace_back(Connect()).SayHello());
  clients.erase(clients.begin());
  EXPECT_TRUE(gone_.AwaitCount(1));
  system_.NameUsers({kForeignUser});
  EXPECT_OK(Connect().SayHello()) << "a place was given back";
}

TEST_F(CompanionServerTest, SilentConnectionsMakeRoomForTheirOwnUser) {
  Restart([](auto& options) {
    options.allowed_users = {geteuid(), kForeignUser};
    options.max_connections = 4;
  });
  system_.NameUsers({geteuid(), kForeignUser, kForeignUser, kForeignUser});
  CompanionClient own = Connect();
  const CompanionClient oldest_foreign = Connect();
  const CompanionClient other_foreign = Connect();
  EXPECT_OK(Connect().SayHello());
  EXPECT_THAT(oldest_foreign.ReceiveRefusal(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(own.SayHello()) << "the oldest of all, but not in that user's half";
}

// --- A machine that is short of something ---

TEST_F(CompanionServerTest, ErrorsOfWaitingAreSurvived) {
  system_.FailWaits({EINTR, EINVAL, ENOMEM, EBADF});
  EXPECT_OK(Connect().SayHello()) << "its connection ends the wait that is under way";
  EXPECT_TRUE(system_.AwaitErrorsTaken());
  EXPECT_OK(Connect().SayHello());
}

TEST_F(CompanionServerTest, ErrorsOfAcceptingAreSurvived) {
  system_.FailAccepts({EINTR, ECONNABORTED, EPROTO, ENOMEM, ENOBUFS, ENFILE, EMFILE, EINVAL});
  // Twice, so that one of them is not the rejected connection.
  for (int i = 0; i < 2; ++i) (void)Connect().SayHello();
  EXPECT_TRUE(system_.AwaitErrorsTaken());
  EXPECT_OK(Connect().SayHello());
}

TEST_F(CompanionServerTest, WithoutADescriptorForItAConnectionIsRefused) {
  system_.FailAccepts({EMFILE});
  EXPECT_THAT(Connect().SayHello(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("free file descriptor")));
  EXPECT_OK(Connect().SayHello());
}

// The thread sleeps between two attempts to accept a connection.
TEST_F(CompanionServerTest, AConnectionThatCannotBeTakenKeepsTheThreadAsleep) {
  int64_t served = 0;
  for (int error : {EMFILE, ENFILE, ENOMEM}) {
    const std::string before = system_.calls();
    const int64_t sleeps = std::count(before.begin(), before.end(), 't');
    system_.FailAcceptsForSleeps(error, 3);
    CompanionClient client = Connect();
    const std::string calls = system_.AwaitCalls('t', sleeps + 3);
    EXPECT_THAT(calls.substr(before.size(), calls.rfind('t') + 1 - before.size()), MatchesRegex("w(aa?[tl]w)+aa?t"))
        << strerror(error);
    EXPECT_OK(client.SayHello()) << "it is taken as soon as it can be";
    client.Close();
    EXPECT_TRUE(gone_.AwaitCount(++served));
  }
}

TEST_F(CompanionServerTest, SilentConnectionsUnderALowLimitKeepNobodyOut) {
  Restart([](auto& options) { options.max_connections = 16; });
  const DescriptorLimit limit(64);
  const test::ChildProcess crowd = RunCrowd(60, [](CompanionClient&) {});
  test::ChildProcess trainer = RunTrainer([](test::Board& board) { test::Reach(board, 0, 1); });
  ASSERT_TRUE(trainer.AwaitNumber(0, 1));
  const std::string token = trainer.board().text;
  EXPECT_OK(server_->Authenticate(token));
  trainer.Signal(SIGKILL);
  EXPECT_TRUE(gone_.Await(token)) << "its death is noticed";
}

// The daemon's configuration under a limit of 1,024 descriptors.
TEST_F(CompanionServerTest, ACrowdWithTokensIsServedToTheLimitAndWatched) {
  Restart([](auto& options) { options.max_connections = 256; });
  const DescriptorLimit limit(1024);
  {
    const test::ChildProcess crowd = RunCrowd(600, [](CompanionClient& client) { (void)client.SayHello(); });
    EXPECT_EQ(server_->connection_count(), 256);
    EXPECT_THAT(Connect().SayHello(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 256")));
  }
  EXPECT_TRUE(gone_.AwaitCount(256));
  EXPECT_OK(Connect().SayHello());
}

// The open file behind a pidfd may live on in another process: its events must not.
TEST_F(CompanionServerTest, ADeadProcessWhosePidfdIsKeptCostsNothing) {
  test::ChildProcess trainer = test::ChildProcess::Run([this](test::Board& board) -> absl::Status {
    const wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    ASSIGN_OR_RETURN(const CompanionClient client, CompanionClient::Connect(path_));
    RETURN_IF_ERROR(client.Send(wire::CompanionBytes(wire::CompanionHello{}), {pidfd.get()}));
    RETURN_IF_ERROR(client.Receive().status());
    const pid_t keeper = fork();
    if (keeper == 0) pause();
    test::Reach(board, 0, static_cast<uint32_t>(keeper));
    pause();
    return absl::OkStatus();
  });
  ASSERT_TRUE(trainer.AwaitNumber(0, 1));
  trainer.Signal(SIGKILL);
  ASSERT_TRUE(gone_.AwaitCount(1));
  const size_t before = system_.calls().size();
  for (int i = 0; i < 20; ++i) EXPECT_OK(Connect().SayHello());
  ASSERT_TRUE(gone_.AwaitCount(21));
  // A connection is taken (a wait and an accept), says hello, and goes.
  EXPECT_LE(system_.calls().size() - before, 20 * 4 + 1);
  EXPECT_EQ(kill(static_cast<pid_t>(trainer.board().numbers[0]), SIGKILL), 0);
}

// --- Dead trainers ---

// A trainer that dies while a child of its own keeps the connection open.
TEST_F(CompanionServerTest, ADeadProcessIsGoneAlthoughItsSocketIsOpen) {
  test::ChildProcess trainer = RunTrainer([](test::Board& board) {
    const pid_t keeper = fork();
    if (keeper == 0) pause();
    test::Reach(board, 0, static_cast<uint32_t>(keeper));
  });
  ASSERT_TRUE(trainer.AwaitNumber(0, 1));
  const std::string token = trainer.board().text;
  EXPECT_OK(server_->Authenticate(token));
  trainer.Signal(SIGKILL);
  EXPECT_TRUE(gone_.Await(token));
  EXPECT_THAT(server_->Authenticate(token), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_EQ(kill(static_cast<pid_t>(trainer.board().numbers[0]), SIGKILL), 0) << "it lived all the time";
}

TEST_F(CompanionServerTest, KillEndsTheProcessOfAToken) {
  test::ChildProcess trainer = RunTrainer([](test::Board& board) { test::Reach(board, 0, 1); });
  ASSERT_TRUE(trainer.AwaitNumber(0, 1));
  const std::string token = trainer.board().text;
  EXPECT_OK(server_->Kill(token));
  EXPECT_THAT(trainer.Await(), StatusIs(absl::StatusCode::kUnknown));
  EXPECT_TRUE(gone_.Await(token));
  EXPECT_OK(server_->Kill(token)) << "who is gone need not be killed";
}

// --- Memory ---

TEST_F(CompanionServerTest, MemoryGoesToTheTokensConnection) {
  CompanionClient client = Connect();
  ASSERT_OK_AND_ASSIGN(const std::string token, client.SayHello());
  const wire::FileDescriptor event(eventfd(0, EFD_CLOEXEC));
  const std::vector<int> fds(3, event.get());
  ASSERT_OK(server_->Send(
      token, wire::CompanionMemory{.session = 5, .planes_bytes = 1, .slots_bytes = 2, .words_bytes = 3}, fds));
  ASSERT_OK_AND_ASSIGN(const wire::CompanionPacket packet, client.Receive());
  ASSERT_OK_AND_ASSIGN(const auto memory,
                       wire::ParseCompanionPacket<wire::CompanionMemory>(packet, wire::CompanionKind::kMemory, 3));
  EXPECT_EQ(memory.session, 5);
  EXPECT_EQ(memory.words_bytes, 3);
}

TEST_F(CompanionServerTest, MemoryForWhoIsGoneIsAborted) {
  CompanionClient client = Connect();
  ASSERT_OK_AND_ASSIGN(const std::string token, client.SayHello());
  client.Close();
  ASSERT_TRUE(gone_.Await(token));
  EXPECT_THAT(server_->Send(token, wire::CompanionMemory(), {}), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(CompanionServerTest, ATrainerThatDoesNotReadHoldsNobodyUp) {
  CompanionClient client = Connect();
  ASSERT_OK_AND_ASSIGN(const std::string token, client.SayHello());
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) status = server_->Send(token, wire::CompanionMemory(), {});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
}

// --- Beginning and end ---

TEST_F(CompanionServerTest, ASecondServerOnTheSamePathIsRefused) {
  EXPECT_THAT(CompanionServer::Start(Options()), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path_)));
  EXPECT_OK(Connect().SayHello()) << "the first one is unharmed";
}

TEST_F(CompanionServerTest, ASocketThatIsRemovedIsMadeAnew) {
  CompanionClient before = Connect();
  ASSERT_OK_AND_ASSIGN(const std::string token, before.SayHello());
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(unlink(path_.c_str()), 0);
    const absl::Time deadline = absl::Now() + kTimeout;
    while (access(path_.c_str(), F_OK) != 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_OK(Connect().SayHello());
  }
  EXPECT_OK(server_->Authenticate(token)) << "connections stay";
}

TEST_F(CompanionServerTest, TheSocketOfADeadServerIsTakenOver) {
  server_.reset();
  // A killed daemon leaves its socket bound, without a listener.
  test::ChildProcess dead = test::ChildProcess::Run([this](test::Board&) -> absl::Status {
    ASSIGN_OR_RETURN(auto server, CompanionServer::Start(Options()));
    server.release();
    return absl::OkStatus();
  });
  ASSERT_OK(dead.Await());
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
  Restart();
  EXPECT_OK(Connect().SayHello());
}

TEST_F(CompanionServerTest, APathThatIsTooLongIsRefused) {
  CompanionServer::Options options = Options();
  options.path = "/tmp/" + std::string(120, 'x');
  EXPECT_THAT(CompanionServer::Start(std::move(options)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("107 bytes")));
}

TEST_F(CompanionServerTest, ItsEndClosesConnectionsAndRemovesTheSocket) {
  CompanionClient client = Connect();
  EXPECT_OK(client.SayHello());
  server_.reset();
  EXPECT_TRUE(client.AwaitClosed());
  EXPECT_EQ(access(path_.c_str(), F_OK), -1);
}

// Counted while one connection is open: the server has seen all earlier ones go before it welcomes the next.
TEST_F(CompanionServerTest, AThousandConnectionsLeaveNothingBehind) {
  CompanionClient first = Connect();
  EXPECT_OK(first.SayHello());
  const int64_t descriptors = OpenDescriptors();
  const int64_t threads = Threads();
  first.Close();
  for (int i = 0; i < 1000; ++i) {
    CompanionClient client = Connect();
    // Some never say hello, some break the protocol, the rest just go.
    if (i % 5 == 0) continue;
    EXPECT_EQ(client.SayHello(i % 5 == 1 ? getppid() : 0).ok(), i % 5 != 1);
  }
  EXPECT_TRUE(gone_.AwaitCount(601));
  CompanionClient last = Connect();
  EXPECT_OK(last.SayHello());
  EXPECT_EQ(server_->connection_count(), 1);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(Threads(), threads);
}

}  // namespace
}  // namespace paramshard::server
