#include "server/keeper/keeper_message.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Encoded(const KeeperMessage& message) {
  const absl::StatusOr<std::string> bytes = EncodeKeeperMessage(message);
  EXPECT_OK(bytes);
  return bytes.value_or("");
}

KeeperMessageHeader HeaderOf(const std::string& bytes) {
  KeeperMessageHeader header{};
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

std::string WithHeader(std::string bytes, const KeeperMessageHeader& header) {
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

const KeeperMessage kKeep = {.kind = KeeperMessageKind::kKeep, .sequence = 7, .words = {std::string("m\0journal", 9)}};

TEST(KeeperMessageTest, WhatIsEncodedIsParsed) {
  ASSERT_OK_AND_ASSIGN(const KeeperMessage keep, ParseKeeperMessage(Encoded(kKeep), 1));
  EXPECT_EQ(keep.kind, KeeperMessageKind::kKeep);
  EXPECT_EQ(keep.sequence, 7U);
  EXPECT_EQ(keep.words, kKeep.words);
  const KeeperMessage page{.sequence = 8, .more = true, .words = {"a", "b"}};
  ASSERT_OK_AND_ASSIGN(const KeeperMessage answer, ParseKeeperMessage(Encoded(page), 2));
  EXPECT_EQ(answer.kind, KeeperMessageKind::kAnswer);
  EXPECT_TRUE(answer.more);
  EXPECT_THAT(answer.words, ElementsAre("a", "b"));
}

TEST(KeeperMessageTest, AnErrorArrivesAsItWas) {
  const absl::Status full = absl::ResourceExhaustedError("keep: full");
  ASSERT_OK_AND_ASSIGN(const KeeperMessage answer, ParseKeeperMessage(Encoded(AnswerOf(3, full)), 0));
  EXPECT_EQ(StatusIn(answer), full);
  ASSERT_OK_AND_ASSIGN(const KeeperMessage done, ParseKeeperMessage(Encoded(AnswerOf(3, absl::OkStatus())), 0));
  EXPECT_OK(StatusIn(done));
}

TEST(KeeperMessageTest, EveryPrefixOfAMessageIsRefused) {
  const std::string bytes = Encoded(kKeep);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(ParseKeeperMessage(bytes.substr(0, size), 1), StatusIs(absl::StatusCode::kInvalidArgument)) << size;
  }
}

TEST(KeeperMessageTest, BytesBehindTheLastWordAreRefused) {
  EXPECT_THAT(ParseKeeperMessage(Encoded(kKeep) + "x", 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("behind the last word")));
}

TEST(KeeperMessageTest, EveryFieldOfTheHeaderIsChecked) {
  const std::string bytes = Encoded(kKeep);
  const KeeperMessageHeader header = HeaderOf(bytes);
  const auto refused = [&](const KeeperMessageHeader& changed, absl::StatusCode code) {
    EXPECT_THAT(ParseKeeperMessage(WithHeader(bytes, changed), 1), StatusIs(code));
    EXPECT_EQ(SequenceIn(WithHeader(bytes, changed)), changed.sequence);
  };
  for (const uint32_t wrong : {7U, 100U, ~0U}) {
    KeeperMessageHeader changed = header;
    changed.magic = wrong;
    refused(changed, absl::StatusCode::kInvalidArgument);
    changed = header;
    changed.version = wrong;
    refused(changed, absl::StatusCode::kFailedPrecondition);
    changed = header;
    changed.kind = wrong;
    refused(changed, absl::StatusCode::kInvalidArgument);
    changed = header;
    changed.code = wrong;
    refused(changed, absl::StatusCode::kInvalidArgument);
    changed = header;
    changed.more = wrong;
    refused(changed, absl::StatusCode::kInvalidArgument);
    changed = header;
    changed.word_count = wrong;
    refused(changed, absl::StatusCode::kInvalidArgument);
  }
}

TEST(KeeperMessageTest, CountsOfWordsAndDescriptorsAreThoseOfTheKind) {
  using enum KeeperMessageKind;
  const auto parse = [](KeeperMessageKind kind, std::vector<std::string> words, size_t descriptors) {
    return ParseKeeperMessage(Encoded({.kind = kind, .sequence = 1, .words = std::move(words)}), descriptors).status();
  };
  for (const size_t descriptors : {0, 2}) {
    EXPECT_THAT(parse(kKeep, {"name"}, descriptors), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(parse(kKeep, {"a", "b"}, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  for (const KeeperMessageKind kind : {kDropPrefix, kTake, kReady}) {
    EXPECT_OK(parse(kind, {""}, 0));
    EXPECT_THAT(parse(kind, {}, 0), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(parse(kind, {"a", "b"}, 0), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(parse(kind, {"a"}, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_OK(parse(kRestart, {}, 0));
  EXPECT_OK(parse(kRestart, {"program", "--flag"}, 0));
  EXPECT_THAT(parse(kRestart, {}, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(parse(kLastRestart, {}, 0));
  EXPECT_THAT(parse(kLastRestart, {"a"}, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(parse(kRestarts, {}, 0));
  EXPECT_THAT(parse(kRestarts, {"a"}, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(parse(kAnswer, {"a text"}, 0));
  EXPECT_THAT(parse(kAnswer, {"a", "b"}, 1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(KeeperMessageTest, AMessageThatIsTooLargeIsNotEncoded) {
  const KeeperMessage large{.kind = KeeperMessageKind::kRestart, .words = {std::string(kMaxKeeperMessageBytes, 'a')}};
  EXPECT_THAT(EncodeKeeperMessage(large), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(KeeperMessageTest, AnyBytesAreParsedOrRefused) {
  const uint64_t seed = FirstSeed(1);
  SCOPED_TRACE(testing::Message() << kSeedVariable << "=" << seed);
  std::mt19937_64 random(seed);
  const std::string bytes = Encoded({.kind = KeeperMessageKind::kRestart, .sequence = 1, .words = {"a", "", "ccc"}});
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = bytes;
    for (int k = 0; k < 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    changed.resize(random() % (changed.size() + 8));
    const absl::StatusOr<KeeperMessage> message = ParseKeeperMessage(changed, random() % 3);
    if (message.ok()) {
      EXPECT_EQ(Encoded(*message), changed);
    }
  }
}

TEST(KeeperMessageTest, ARestartMayNameACommand) {
  const ServerCommand command{.program = "/bin/server", .arguments = {"--flag", ""}};
  EXPECT_EQ(CommandIn(WordsOf(command)), command);
  EXPECT_THAT(WordsOf(std::nullopt), IsEmpty());
  EXPECT_EQ(CommandIn({}), std::nullopt);
}

TEST(KeeperMessageTest, ARestartNamesNoProgramWhereThatIsNotToChange) {
  const ServerCommand present{.program = "/bin/server", .arguments = {"--flag"}};
  EXPECT_EQ(ServerCommandChange().RequestFrom(present), std::nullopt);
  EXPECT_EQ(ServerCommandChange{.arguments = {{"--other"}}}.RequestFrom(present),
            (ServerCommand{.program = "", .arguments = {"--other"}}));
  EXPECT_EQ(ServerCommandChange{.program = "/bin/server"}.RequestFrom(present), present);
}

}  // namespace
}  // namespace paramshard::server
