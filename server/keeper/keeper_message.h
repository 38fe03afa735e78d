// Messages between the server and its keeper, on a SOCK_SEQPACKET socket pair: requests of the server, and one answer
// to each.
//
//   request       words                           descriptors    words of the answer   its descriptors
//   keep          the name                        1              none
//   drop prefix   the prefix, which may be empty  none           none
//   take          the name after which to begin   none           names, in order       one for each name
//   ready         the server's version            none           none
//   restart       none, or program and arguments  none           none
//   last restart  none                            none           none; why it was given up, if it was
//   restarts      none                            none           how many servers were started after the first
//
// An answer that is an error has one word, what is wrong, and no descriptors. A server takes in pages: from the
// beginning (an empty name), then from behind the last name of each page that says that there is more.
//
// A keeper outlives its servers, and the next one may be of another version. So the header never changes, and a keeper
// answers who speaks another version of the rest with FAILED_PRECONDITION.
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
// Of what an answer says in words; more would only be cut off elsewhere.
inline constexpr size_t kMaxKeeperTextBytes = 1024;
// The kernel passes no more with one packet (its SCM_MAX_FD).
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
  uint64_t sequence;  // a server counts its requests, from 1; an answer has its request's
  uint32_t kind;
  uint32_t code;  // absl::StatusCode of an answer, else 0
  uint32_t more;  // 1: an answer to take is not the last
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

// How many bytes of a message a word takes.
inline size_t KeeperWordBytes(absl::string_view word) { return sizeof(uint32_t) + word.size(); }

// INVALID_ARGUMENT a message of more than kMaxKeeperMessageBytes.
absl::StatusOr<std::string> EncodeKeeperMessage(const KeeperMessage& message);

// The answer that says how a request has ended.
KeeperMessage AnswerOf(uint64_t sequence, const absl::Status& status);
// What an answer that is an error says.
absl::Status StatusIn(const KeeperMessage& answer);

// INVALID_ARGUMENT names what is wrong with a packet that came with so many descriptors: the header, the sizes, or what
// a message of its kind has to have. FAILED_PRECONDITION another version. Names are not looked at.
absl::StatusOr<KeeperMessage> ParseKeeperMessage(absl::string_view packet, size_t descriptor_count);

// The sequence number of a packet that has a whole header; 0 for others.
uint64_t SequenceIn(absl::string_view packet);

// The words of a restart request, and what they say; without a command: the one that the server was started with.
std::vector<std::string> WordsOf(const std::optional<ServerCommand>& command);
std::optional<ServerCommand> CommandIn(const std::vector<std::string>& words);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEEPER_MESSAGE_H_
