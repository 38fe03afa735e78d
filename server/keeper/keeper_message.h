// Messages between a server and its keeper, on a SOCK_SEQPACKET socket pair: requests of the server, each with one
// answer.
//
//   request       words                           descriptors    words of the answer   its descriptors
//   keep          the name                        1              none
//   drop prefix   the prefix, which may be empty  none           none
//   take          the name after which to begin   none           names, in order       one for each name
//   ready         the server's version            none           none
//   restart       none, or program and arguments  none           none
//   last restart  none                            none           none; why it failed, if it did
//   restarts      none                            none           how many servers were started after the first
//
// An error answer has one word, the message, and no descriptors. A server takes in pages: it begins with an empty name,
// and continues after the last name of each page that has `more` set.
//
// A keeper outlives its servers, and the next server may have another version. So the header never changes, and a
// keeper answers a server that uses another version of the rest with FAILED_PRECONDITION.
#ifndef PARAMSHARD_SERVER_KEEPER_KEEPER_MESSAGE_H_
#define PARAMSHARD_SERVER_KEEPER_KEEPER_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/server_command.h"

namespace paramshard::server {

inline constexpr uint32_t kKeeperMagic = 0x4b505331;  // "1SPK"
inline constexpr uint32_t kKeeperVersion = 1;
inline constexpr size_t kMaxKeeperMessageBytes = size_t{32} << 10;
// Largest text of an answer; longer texts are truncated.
inline constexpr size_t kMaxKeeperTextBytes = 1024;
// Largest number of descriptors that the kernel passes with one packet (SCM_MAX_FD).
inline constexpr size_t kMaxKeeperMessageDescriptors = 253;

enum class KeeperMessageKind : uint32_t {
  kKeep = 1,
  kDropPrefix = 2,
  kTake = 3,
  kReady = 4,
  kRestart = 5,
  kAnswer = 6,
  kLastRestart = 7,
  kRestarts = 8
};

struct KeeperMessageHeader {
  uint32_t magic;
  uint32_t version;
  uint64_t sequence;  // number of the request, from 1; an answer has the number of its request
  uint32_t kind;
  uint32_t code;  // absl::StatusCode of an answer, else 0
  uint32_t more;  // 1: another page follows this answer to take
  uint32_t word_count;
};

// Each word follows as its length, a uint32_t, and its bytes.
struct KeeperMessage {
  KeeperMessageKind kind = KeeperMessageKind::kAnswer;
  uint64_t sequence = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  bool more = false;
  std::vector<std::string> words = {};
};

// Returns how many bytes of a message a word takes.
inline size_t KeeperWordBytes(absl::string_view word) { return sizeof(uint32_t) + word.size(); }

// INVALID_ARGUMENT a message of more than kMaxKeeperMessageBytes.
absl::StatusOr<std::string> EncodeKeeperMessage(const KeeperMessage& message);

// Returns the answer with the result of a request.
KeeperMessage AnswerOf(uint64_t sequence, const absl::Status& status);
// Returns the status in an answer.
absl::Status StatusIn(const KeeperMessage& answer);

// Parses a packet that came with so many descriptors. INVALID_ARGUMENT a wrong header, wrong sizes, or wrong counts for
// the kind of message. FAILED_PRECONDITION another version. Does not check names.
absl::StatusOr<KeeperMessage> ParseKeeperMessage(absl::string_view packet, size_t descriptor_count);

// Returns the sequence number of a packet with a whole header; 0 for other packets.
uint64_t SequenceIn(absl::string_view packet);

// Convert between a command and the words of a restart request; null: the command that the server was started with.
std::vector<std::string> WordsOf(const std::optional<ServerCommand>& command);
std::optional<ServerCommand> CommandIn(const std::vector<std::string>& words);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEEPER_MESSAGE_H_
