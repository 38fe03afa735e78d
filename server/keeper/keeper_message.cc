#include "server/keeper/keeper_message.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

template <typename Number>
void Append(std::string& bytes, const Number& number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

absl::Status Wrong(absl::string_view field, uint64_t expected, uint64_t got) {
  return absl::InvalidArgumentError(absl::StrCat("keeper message: want ", expected, " ", field, ", got ", got));
}

absl::StatusOr<KeeperMessageHeader> HeaderIn(absl::string_view packet) {
  KeeperMessageHeader header{};
  if (packet.size() < sizeof(header) || packet.size() > kMaxKeeperMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("keeper message: want ", sizeof(header), " to ",
                                                   kMaxKeeperMessageBytes, " bytes, got ", packet.size()));
  }
  std::memcpy(&header, packet.data(), sizeof(header));
  if (header.magic != kKeeperMagic) return Wrong("as magic", kKeeperMagic, header.magic);
  if (header.version != kKeeperVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("keeper message: want version ", kKeeperVersion, ", got ", header.version));
  }
  return header;
}

absl::Status CheckHeader(const KeeperMessageHeader& header) {
  const bool answer = header.kind == static_cast<uint32_t>(KeeperMessageKind::kAnswer);
  if (header.kind < 1 || header.kind > static_cast<uint32_t>(KeeperMessageKind::kRestarts)) {
    return Wrong("as the largest kind", static_cast<uint32_t>(KeeperMessageKind::kRestarts), header.kind);
  }
  const uint32_t last_code = answer ? static_cast<uint32_t>(absl::StatusCode::kUnauthenticated) : 0;
  if (header.code > last_code) return Wrong("as the largest code", last_code, header.code);
  const uint32_t most = answer && header.code == 0 ? 1 : 0;
  if (header.more > most) return Wrong("as the largest value of more", most, header.more);
  return absl::OkStatus();
}

// Checks the length against the rest of the packet, so that no word is larger than its packet.
absl::StatusOr<std::string> TakeWord(absl::string_view& rest) {
  uint32_t size = 0;
  if (rest.size() < sizeof(size)) return Wrong("bytes of a word's length", sizeof(size), rest.size());
  std::memcpy(&size, rest.data(), sizeof(size));
  rest.remove_prefix(sizeof(size));
  if (rest.size() < size) return Wrong("bytes of a word", size, rest.size());
  std::string word(rest.substr(0, size));
  rest.remove_prefix(size);
  return word;
}

absl::StatusOr<std::vector<std::string>> TakeWords(absl::string_view rest, uint32_t count) {
  std::vector<std::string> words;
  for (uint32_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(std::string word, TakeWord(rest));
    words.push_back(std::move(word));
  }
  if (!rest.empty()) return Wrong("bytes behind the last word", 0, rest.size());
  return words;
}

absl::Status CheckCounts(const KeeperMessage& message, size_t descriptors) {
  const size_t words = message.words.size();
  switch (message.kind) {
    case KeeperMessageKind::kKeep:
      if (words != 1) return Wrong("words of keep", 1, words);
      return descriptors == 1 ? absl::OkStatus() : Wrong("descriptors of keep", 1, descriptors);
    case KeeperMessageKind::kDropPrefix:
    case KeeperMessageKind::kTake:
    case KeeperMessageKind::kReady:
      if (words != 1) return Wrong("words", 1, words);
      break;
    case KeeperMessageKind::kRestart:
      break;
    case KeeperMessageKind::kLastRestart:
    case KeeperMessageKind::kRestarts:
      if (words != 0) return Wrong("words", 0, words);
      break;
    case KeeperMessageKind::kAnswer:
      // The words are names, each with its descriptor, or one text.
      if (message.code == absl::StatusCode::kOk) {
        return words == descriptors || (words == 1 && descriptors == 0)
                   ? absl::OkStatus()
                   : Wrong("descriptors of an answer", words, descriptors);
      }
      if (words != 1) return Wrong("words of an error", 1, words);
      break;
  }
  return descriptors == 0 ? absl::OkStatus() : Wrong("descriptors", 0, descriptors);
}

}  // namespace

absl::StatusOr<std::string> EncodeKeeperMessage(const KeeperMessage& message) {
  const KeeperMessageHeader header{.magic = kKeeperMagic,
                                   .version = kKeeperVersion,
                                   .sequence = message.sequence,
                                   .kind = static_cast<uint32_t>(message.kind),
                                   .code = static_cast<uint32_t>(message.code),
                                   .more = message.more ? 1U : 0U,
                                   .word_count = static_cast<uint32_t>(message.words.size())};
  size_t size = sizeof(header);
  for (const std::string& word : message.words) size += KeeperWordBytes(word);
  if (size > kMaxKeeperMessageBytes) return Wrong("bytes at most", kMaxKeeperMessageBytes, size);
  std::string bytes;
  bytes.reserve(size);
  Append(bytes, header);
  for (const std::string& word : message.words) {
    Append(bytes, static_cast<uint32_t>(word.size()));
    bytes += word;
  }
  return bytes;
}

KeeperMessage AnswerOf(uint64_t sequence, const absl::Status& status) {
  KeeperMessage answer{.sequence = sequence, .code = status.code()};
  if (!status.ok()) answer.words.emplace_back(status.message().substr(0, kMaxKeeperTextBytes));
  return answer;
}

absl::Status StatusIn(const KeeperMessage& answer) {
  return absl::Status(answer.code, answer.words.empty() ? "" : answer.words.front());
}

absl::StatusOr<KeeperMessage> ParseKeeperMessage(absl::string_view packet, size_t descriptor_count) {
  ASSIGN_OR_RETURN(const KeeperMessageHeader header, HeaderIn(packet));
  RETURN_IF_ERROR(CheckHeader(header));
  KeeperMessage message{.kind = static_cast<KeeperMessageKind>(header.kind),
                        .sequence = header.sequence,
                        .code = static_cast<absl::StatusCode>(header.code),
                        .more = header.more != 0};
  ASSIGN_OR_RETURN(message.words, TakeWords(packet.substr(sizeof(header)), header.word_count));
  RETURN_IF_ERROR(CheckCounts(message, descriptor_count));
  return message;
}

uint64_t SequenceIn(absl::string_view packet) {
  KeeperMessageHeader header{};
  if (packet.size() >= sizeof(header)) std::memcpy(&header, packet.data(), sizeof(header));
  return header.sequence;
}

std::vector<std::string> WordsOf(const std::optional<ServerCommand>& command) {
  std::vector<std::string> words;
  if (!command.has_value()) return words;
  words.push_back(command->program);
  words.insert(words.end(), command->arguments.begin(), command->arguments.end());
  return words;
}

std::optional<ServerCommand> CommandIn(const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  return ServerCommand{.program = words.front(), .arguments = {words.begin() + 1, words.end()}};
}

}  // namespace paramshard::server
