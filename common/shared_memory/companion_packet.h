// Messages of the companion Unix socket (SOCK_SEQPACKET), which passes file descriptors and mints tokens.
//
//   client -> daemon   CompanionHello + its own pidfd
//   daemon -> client   CompanionWelcome with the token + the daemon's pidfd, or CompanionRefusal
//   daemon -> client   CompanionMemory + [planes, slots, words], once for each epoch that the connection attached for
//   daemon -> client   CompanionReader + [publication page, lease page], then CompanionPlanes + [planes] for each rank,
//                      once for each reader that the connection opened
//
// The connection lives as long as the token. Every message is one packet of exactly the struct's size.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_COMPANION_PACKET_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_COMPANION_PACKET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::wire {

inline constexpr uint32_t kCompanionMagic = 0x48535031;  // "1PSH"
inline constexpr uint32_t kCompanionVersion = 2;
inline constexpr int kTokenBytes = 32;  // hexadecimal digits
// The metadata of every call carries the token under this key.
inline constexpr char kTokenMetadata[] = "paramshard-token";

enum class CompanionKind : uint32_t { kHello = 1, kWelcome = 2, kRefusal = 3, kMemory = 4, kReader = 5, kPlanes = 6 };

struct CompanionHeader {
  uint32_t magic = kCompanionMagic;
  uint32_t version = kCompanionVersion;
  CompanionKind kind;
  uint32_t size_bytes;  // of the whole message
};

struct CompanionHello {
  CompanionHeader header{.kind = CompanionKind::kHello, .size_bytes = sizeof(CompanionHello)};
};

struct CompanionWelcome {
  CompanionHeader header{.kind = CompanionKind::kWelcome, .size_bytes = sizeof(CompanionWelcome)};
  char token[kTokenBytes];
};

struct CompanionRefusal {
  CompanionHeader header{.kind = CompanionKind::kRefusal, .size_bytes = sizeof(CompanionRefusal)};
  uint32_t code;  // absl::StatusCode
  char reason[252];
};

struct CompanionMemory {
  CompanionHeader header{.kind = CompanionKind::kMemory, .size_bytes = sizeof(CompanionMemory)};
  int64_t session;
  int64_t planes_bytes;
  int64_t slots_bytes;
  int64_t words_bytes;
};

struct CompanionReader {
  CompanionHeader header{.kind = CompanionKind::kReader, .size_bytes = sizeof(CompanionReader)};
  int64_t publication_bytes;
  int64_t lease_bytes;
  int64_t ranks;  // number of CompanionPlanes that follow
};

struct CompanionPlanes {
  CompanionHeader header{.kind = CompanionKind::kPlanes, .size_bytes = sizeof(CompanionPlanes)};
  int64_t rank;  // of the shard group
  int64_t bytes;
};

struct CompanionPacket {
  std::vector<uint8_t> bytes;
  std::vector<FileDescriptor> fds;
};

inline constexpr int kMaxCompanionBytes = 512;
inline constexpr int kMaxCompanionFds = 4;

// Sends one packet with descriptors; blocks only until the socket buffer has room. UNAVAILABLE if the peer has closed
// or does not read; RESOURCE_EXHAUSTED if the kernel does not pass on more descriptors.
absl::Status SendCompanionPacket(int socket, absl::Span<const uint8_t> bytes, absl::Span<const int> fds);

// Receives one packet. UNAVAILABLE if the peer has closed; INVALID_ARGUMENT if the packet or its descriptors exceed the
// limits above; RESOURCE_EXHAUSTED if this process may not open as many descriptors (the received ones are closed);
// DEADLINE_EXCEEDED. A signal does not end the wait.
absl::StatusOr<CompanionPacket> ReceiveCompanionPacket(int socket, absl::Duration timeout);

// Sends `why` as a CompanionRefusal and shuts the connection down such that the peer receives it, even if the peer has
// sent packets meanwhile. Close the socket next.
void RefuseCompanion(int socket, const absl::Status& why);

// Returns the status in a refusal, or nullopt if the packet is a different message.
std::optional<absl::Status> RefusalIn(const CompanionPacket& packet);

// Returns the message in a packet. INVALID_ARGUMENT names the field that is wrong: magic, version, kind, size or
// descriptor count.
template <typename Message>
absl::StatusOr<Message> ParseCompanionPacket(const CompanionPacket& packet, CompanionKind kind, int fd_count);

template <typename Message>
absl::Span<const uint8_t> CompanionBytes(const Message& message ABSL_ATTRIBUTE_LIFETIME_BOUND) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(&message), sizeof(message));
}

// --- implementation ---

absl::Status CheckCompanionPacket(const CompanionPacket& packet, CompanionKind kind, size_t size_bytes, int fd_count);

template <typename Message>
absl::StatusOr<Message> ParseCompanionPacket(const CompanionPacket& packet, CompanionKind kind, int fd_count) {
  if (absl::Status status = CheckCompanionPacket(packet, kind, sizeof(Message), fd_count); !status.ok()) return status;
  Message message;
  std::copy_n(packet.bytes.data(), sizeof(Message), reinterpret_cast<uint8_t*>(&message));
  return message;
}

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_COMPANION_PACKET_H_
