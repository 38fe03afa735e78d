// Messages of the companion Unix socket (SOCK_SEQPACKET), which passes file descriptors and mints tokens.
//
//   client -> daemon   HandoffHello + its own pidfd
//   daemon -> client   HandoffWelcome with the token + the daemon's pidfd, or HandoffRefusal
//   daemon -> client   HandoffMemory + [planes, slots, words], once for each epoch that the connection attached for
//
// The connection lives as long as the token. Every message is one packet of exactly the struct's size.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_HANDOFF_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_HANDOFF_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace paramshard::wire {

inline constexpr uint32_t kHandoffMagic = 0x48535031;  // "1PSH"
inline constexpr uint32_t kHandoffVersion = 2;
inline constexpr int kTokenBytes = 32;  // hexadecimal digits
// The metadata of every call carries the token under this key.
inline constexpr char kTokenMetadata[] = "paramshard-token";

enum class HandoffKind : uint32_t { kHello = 1, kWelcome = 2, kRefusal = 3, kMemory = 4 };

struct HandoffHeader {
  uint32_t magic = kHandoffMagic;
  uint32_t version = kHandoffVersion;
  HandoffKind kind;
  uint32_t size_bytes;  // of the whole message
};

struct HandoffHello {
  HandoffHeader header{.kind = HandoffKind::kHello, .size_bytes = sizeof(HandoffHello)};
};

struct HandoffWelcome {
  HandoffHeader header{.kind = HandoffKind::kWelcome, .size_bytes = sizeof(HandoffWelcome)};
  char token[kTokenBytes];
};

struct HandoffRefusal {
  HandoffHeader header{.kind = HandoffKind::kRefusal, .size_bytes = sizeof(HandoffRefusal)};
  uint32_t code;  // absl::StatusCode
  char reason[252];
};

struct HandoffMemory {
  HandoffHeader header{.kind = HandoffKind::kMemory, .size_bytes = sizeof(HandoffMemory)};
  int64_t session;
  int64_t planes_bytes;
  int64_t slots_bytes;
  int64_t words_bytes;
};

// Owns a file descriptor. Move-only; empty is -1.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();
  // Transfers ownership to the caller.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct HandoffPacket {
  std::vector<uint8_t> bytes;
  std::vector<FileDescriptor> fds;
};

inline constexpr int kMaxHandoffBytes = 512;
inline constexpr int kMaxHandoffFds = 4;

// Sends one packet with descriptors; blocks only until the socket buffer has room. UNAVAILABLE if the peer has closed
// or does not read; RESOURCE_EXHAUSTED if the kernel does not pass on more descriptors.
absl::Status SendHandoff(int socket, absl::Span<const uint8_t> bytes, absl::Span<const int> fds);

// Receives one packet. UNAVAILABLE if the peer has closed; INVALID_ARGUMENT if the packet or its descriptors exceed the
// limits above; RESOURCE_EXHAUSTED if this process may not open as many descriptors (the received ones are closed);
// DEADLINE_EXCEEDED. A signal does not end the wait.
absl::StatusOr<HandoffPacket> ReceiveHandoff(int socket, absl::Duration timeout);

// Sends `why` as a HandoffRefusal and shuts the connection down such that the peer receives it, even if the peer has
// sent packets meanwhile. Close the socket next.
void RefuseHandoff(int socket, const absl::Status& why);

// Returns the status in a refusal, or nullopt if the packet is a different message.
std::optional<absl::Status> RefusalIn(const HandoffPacket& packet);

// Returns the message in a packet. INVALID_ARGUMENT names the field that is wrong: magic, version, kind, size or
// descriptor count.
template <typename Message>
absl::StatusOr<Message> ParseHandoff(const HandoffPacket& packet, HandoffKind kind, int fd_count);

template <typename Message>
absl::Span<const uint8_t> HandoffBytes(const Message& message ABSL_ATTRIBUTE_LIFETIME_BOUND) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(&message), sizeof(message));
}

// --- implementation ---

absl::Status CheckHandoff(const HandoffPacket& packet, HandoffKind kind, size_t size_bytes, int fd_count);

template <typename Message>
absl::StatusOr<Message> ParseHandoff(const HandoffPacket& packet, HandoffKind kind, int fd_count) {
  if (absl::Status status = CheckHandoff(packet, kind, sizeof(Message), fd_count); !status.ok()) return status;
  Message message;
  std::copy_n(packet.bytes.data(), sizeof(Message), reinterpret_cast<uint8_t*>(&message));
  return message;
}

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_HANDOFF_H_
