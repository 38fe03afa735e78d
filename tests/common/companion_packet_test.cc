#include "common/shared_memory/companion_packet.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::wire {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::SizeIs;

class CompanionTest : public testing::Test {
 protected:
  CompanionTest() {
    int sockets[2];
    PARAMSHARD_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
    near_ = FileDescriptor(sockets[0]);
    far_ = FileDescriptor(sockets[1]);
  }

  // Sends without the limits of SendCompanionPacket.
  void SendRaw(const std::vector<uint8_t>& bytes, const std::vector<int>& fds) {
    iovec vector{const_cast<uint8_t*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
    }
    ASSERT_EQ(sendmsg(near_.get(), &message, 0), static_cast<ssize_t>(bytes.size()));
  }

  template <typename Message>
  static std::vector<uint8_t> BytesOf(const Message& message) {
    const auto bytes = CompanionBytes(message);
    return {bytes.begin(), bytes.end()};
  }

  absl::StatusOr<CompanionPacket> Receive() { return ReceiveCompanionPacket(far_.get(), absl::Seconds(30)); }
  // Receives a hello and returns the result of parsing it.
  absl::Status ReceiveHello() {
    absl::StatusOr<CompanionPacket> packet = Receive();
    if (!packet.ok()) return packet.status();
    return ParseCompanionPacket<CompanionHello>(*packet, CompanionKind::kHello, 1).status();
  }

  FileDescriptor near_, far_;
  const FileDescriptor event_{eventfd(0, EFD_CLOEXEC)};
};

ino_t InodeOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

TEST_F(CompanionTest, AMessageAndItsDescriptorsArrive) {
  const CompanionMemory sent{.session = 7, .planes_bytes = 1, .slots_bytes = int64_t{1} << 40, .words_bytes = 3};
  ASSERT_OK(SendCompanionPacket(near_.get(), CompanionBytes(sent), {near_.get(), far_.get(), event_.get()}));
  ASSERT_OK_AND_ASSIGN(const CompanionPacket packet, Receive());
  ASSERT_OK_AND_ASSIGN(const CompanionMemory got,
                       ParseCompanionPacket<CompanionMemory>(packet, CompanionKind::kMemory, 3));
  EXPECT_EQ(got.session, 7);
  EXPECT_EQ(got.slots_bytes, int64_t{1} << 40);
  ASSERT_THAT(packet.fds, SizeIs(3));
  EXPECT_EQ(InodeOf(packet.fds[0].get()), InodeOf(near_.get()));
  EXPECT_EQ(InodeOf(packet.fds[1].get()), InodeOf(far_.get()));
  EXPECT_TRUE(fcntl(packet.fds[2].get(), F_GETFD) & FD_CLOEXEC);
}

TEST_F(CompanionTest, EveryTruncationOfAMessageIsRefused) {
  const std::vector<uint8_t> whole = BytesOf(CompanionHello{});
  for (size_t size = 1; size < whole.size(); ++size) {
    SendRaw({whole.begin(), whole.begin() + size}, {event_.get()});
    EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("companion message"))) << size;
  }
}

TEST_F(CompanionTest, TrailingBytesAreRefused) {
  std::vector<uint8_t> bytes = BytesOf(CompanionHello{});
  bytes.push_back(0);
  SendRaw(bytes, {event_.get()});
  EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want size 16, got 17")));
}

TEST_F(CompanionTest, APacketAboveTheLimitIsRefused) {
  for (size_t size : {kMaxCompanionBytes + 1, 100'000}) {
    SendRaw(std::vector<uint8_t>(size), {});
    EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 512 bytes"))) << size;
  }
}

TEST_F(CompanionTest, WrongHeadersAreRefusedByName) {
  const auto refused = [&](auto change, absl::string_view field) {
    CompanionHello hello;
    change(hello.header);
    SendRaw(BytesOf(hello), {event_.get()});
    EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(field))));
  };
  refused([](CompanionHeader& header) { header.magic ^= 1; }, "magic");
  refused([](CompanionHeader& header) { header.version = 1; }, "want version 2, got 1");
  refused([](CompanionHeader& header) { header.kind = CompanionKind::kMemory; }, "want kind 1, got 4");
  refused([](CompanionHeader& header) { header.kind = static_cast<CompanionKind>(99); }, "kind");
  refused([](CompanionHeader& header) { header.size_bytes += 1; }, "stated size");
}

TEST_F(CompanionTest, AnotherNumberOfDescriptorsIsRefused) {
  for (const std::vector<int>& fds : {std::vector<int>{}, {event_.get(), event_.get()}}) {
    SendRaw(BytesOf(CompanionHello{}), fds);
    EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want descriptors 1")));
  }
}

TEST_F(CompanionTest, DescriptorsOfRefusedPacketsAreClosed) {
  const int64_t before = OpenDescriptors();
  SendRaw(BytesOf(CompanionHello{}), std::vector<int>(4, event_.get()));
  EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("descriptors")));
  SendRaw(BytesOf(CompanionHello{}), std::vector<int>(30, event_.get()));
  EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 descriptors, got more")));
  ASSERT_OK(SendCompanionPacket(near_.get(), CompanionBytes(CompanionHello{}), std::vector<int>(30, event_.get())));
  EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 descriptors, got more")));
  SendRaw(std::vector<uint8_t>(1000), {event_.get()});
  EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(CompanionTest, APeerThatClosedIsUnavailable) {
  near_.Reset();
  EXPECT_THAT(Receive(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(SendCompanionPacket(far_.get(), CompanionBytes(CompanionHello{}), {}),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(CompanionTest, SilenceEndsAtTheTimeout) {
  EXPECT_THAT(ReceiveCompanionPacket(far_.get(), absl::Milliseconds(1)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(ReceiveCompanionPacket(far_.get(), absl::ZeroDuration()), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(CompanionTest, AFullSocketThatDoesNotBlockIsUnavailable) {
  ASSERT_EQ(fcntl(near_.get(), F_SETFL, O_NONBLOCK), 0);
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i)
    status = SendCompanionPacket(near_.get(), CompanionBytes(CompanionHello{}), {});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
}

// --- Signals, limits and refusals ---

int signal_socket = -1;

void SendHelloFromASignal(int) {
  const CompanionHello hello;
  (void)!write(signal_socket, &hello, sizeof(hello));
}

// The signal interrupts the wait, and its handler sends the packet; without SA_RESTART, as trainers may have it.
TEST_F(CompanionTest, ASignalDoesNotEndTheWait) {
  signal_socket = near_.get();
  struct sigaction action {};
  action.sa_handler = SendHelloFromASignal;
  struct sigaction before;
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 20'000}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &once, nullptr), 0);
  EXPECT_THAT(Receive(), IsOk());
  sigaction(SIGALRM, &before, nullptr);
}

TEST_F(CompanionTest, WhoIsOutOfDescriptorsSaysSo) {
  SendRaw(BytesOf(CompanionHello{}), {event_.get()});
  const DescriptorLimit limit(DescriptorLimit::NoneLeft());
  EXPECT_THAT(ReceiveHello(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("out of file descriptors")));
}

// Closing a socket with an unread hello resets the connection, but RefuseCompanion does not.
TEST_F(CompanionTest, ARefusalArrivesWhateverHasBeenSentMeanwhile) {
  for (int i = 0; i < 3; ++i) SendRaw(BytesOf(CompanionHello{}), {event_.get()});
  RefuseCompanion(far_.get(), absl::PermissionDeniedError("connect: another user expected"));
  far_.Reset();
  EXPECT_THAT(SendCompanionPacket(near_.get(), CompanionBytes(CompanionHello{}), {}),
              StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_OK_AND_ASSIGN(const CompanionPacket packet, ReceiveCompanionPacket(near_.get(), absl::Seconds(30)));
  EXPECT_THAT(RefusalIn(packet), Optional(StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("another user"))));
  EXPECT_THAT(ReceiveCompanionPacket(near_.get(), absl::Seconds(30)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(CompanionTest, ALongReasonIsCutAndAnUnknownCodeIsUnknown) {
  RefuseCompanion(near_.get(), absl::ResourceExhaustedError(std::string(1000, 'x')));
  ASSERT_OK_AND_ASSIGN(CompanionPacket packet, Receive());
  EXPECT_THAT(RefusalIn(packet), Optional(StatusIs(absl::StatusCode::kResourceExhausted, std::string(251, 'x'))));
  for (uint8_t code : {0, 17, 255}) {
    packet.bytes[offsetof(CompanionRefusal, code)] = code;
    EXPECT_THAT(RefusalIn(packet), Optional(StatusIs(absl::StatusCode::kUnknown)));
  }
}

TEST_F(CompanionTest, OtherMessagesAreNoRefusals) {
  SendRaw(BytesOf(CompanionHello{}), {});
  ASSERT_OK_AND_ASSIGN(const CompanionPacket packet, Receive());
  EXPECT_EQ(RefusalIn(packet), std::nullopt);
}

TEST(FileDescriptorTest, ClosesWhatItOwnsOnce) {
  const int64_t before = OpenDescriptors();
  {
    FileDescriptor first(eventfd(0, EFD_CLOEXEC));
    const int number = first.get();
    FileDescriptor second(std::move(first));
    EXPECT_EQ(second.get(), number);
    EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move)
    second = FileDescriptor(eventfd(0, EFD_CLOEXEC));
    EXPECT_EQ(fcntl(number, F_GETFD), -1);
    second.Reset();
    second.Reset();
    EXPECT_FALSE(second.valid());
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace paramshard::wire
