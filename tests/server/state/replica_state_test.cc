#include "server/state/replica_state.h"

#include <random>
#include <string>

#include "common/model/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/cluster.pb.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

constexpr int kParameters = 3;
constexpr int kRanks = 2;

ReplicaState Some() {
  return {.history = {.id = {absl::MakeUint128(1, 2)},
                      .lineage = {absl::MakeUint128(3, 4)},
                      .parent = HistoryParent{.history = {absl::MakeUint128(5, 6)}, .commit_number = 7}},
          .history_begin = 7,
          .commits = {.numbers = {.commit_number = 12, .version = 10, .skipped = 2},
                      .last_answer = CommitAnswer{.commit_number = 12,
                                                  .version = 10,
                                                  .skipped = true,
                                                  .gradient_norm = 0.5,
                                                  .non_finite_count = 4},
                      .client_states = {std::string("\0a", 2), ""},
                      .reader_data = std::string("\0r", 2)},
          .steps = {1, 0, 9},
          .scaling = {{.unit = 0, .parameter = 1, .amax = 2.5f, .scale = 0.25f, .is_fresh = true},
                      {.unit = 2,
                       .parameter = 0,
                       .amax = 1.5f,
                       .scale = 0.5f,
                       .is_fresh = false,
                       .history = ScalingBook::Record::History{.scale = 8.0f, .amaxes = {1.0f, 0.0f, 3.0f}}}}};
}

absl::StatusOr<ReplicaState> Parse(const ReplicaState& state) {
  return ParseReplicaState(SerializeReplicaState(state), kParameters, kRanks);
}

TEST(ReplicaStateTest, ComesBackAsItWasSent) {
  ASSERT_OK_AND_ASSIGN(const ReplicaState back, Parse(Some()));
  const ReplicaState sent = Some();
  EXPECT_EQ(back.history.id, sent.history.id);
  EXPECT_EQ(back.history.lineage, sent.history.lineage);
  EXPECT_EQ(back.history.parent, sent.history.parent);
  EXPECT_EQ(back.history_begin, sent.history_begin);
  EXPECT_EQ(back.commits.numbers.commit_number, 12);
  EXPECT_EQ(back.commits.numbers.version, 10);
  EXPECT_EQ(back.commits.numbers.skipped, 2);
  EXPECT_EQ(back.commits.last_answer, sent.commits.last_answer);
  EXPECT_EQ(back.commits.client_states, sent.commits.client_states);
  EXPECT_EQ(back.commits.reader_data, sent.commits.reader_data);
  EXPECT_EQ(back.commits.previous, std::nullopt);
  EXPECT_EQ(back.steps, sent.steps);
  EXPECT_EQ(back.scaling, sent.scaling);
}

TEST(ReplicaStateTest, WhatIsNotKnownStaysSo) {
  ReplicaState state = Some();
  state.history.parent.reset();
  state.commits.last_answer.reset();
  ASSERT_OK_AND_ASSIGN(const ReplicaState back, Parse(state));
  EXPECT_EQ(back.history.parent, std::nullopt);
  EXPECT_EQ(back.commits.last_answer, std::nullopt);
}

TEST(ReplicaStateTest, NumbersOfAnotherModelAreRefused) {
  const std::string bytes = SerializeReplicaState(Some());
  const auto is_loss = StatusIs(absl::StatusCode::kDataLoss);
  EXPECT_THAT(ParseReplicaState(bytes, kParameters + 1, kRanks), is_loss);
  EXPECT_THAT(ParseReplicaState(bytes, kParameters, kRanks - 1), is_loss);
  EXPECT_THAT(ParseReplicaState("no message", kParameters, kRanks), is_loss);
}

TEST(ReplicaStateTest, NumbersThatDoNotFitTogetherAreRefused) {
  const auto broken = [](auto change) {
    ReplicaState state = Some();
    change(state);
    return Parse(state).status();
  };
  const auto is_loss = StatusIs(absl::StatusCode::kDataLoss);
  EXPECT_THAT(broken([](ReplicaState& state) { state.commits.numbers.version = 13; }), is_loss);
  EXPECT_THAT(broken([](ReplicaState& state) { state.commits.numbers.version = -1; }), is_loss);
  EXPECT_THAT(broken([](ReplicaState& state) { state.commits.numbers.skipped = -1; }), is_loss);
  EXPECT_THAT(broken([](ReplicaState& state) { state.commits.numbers.commit_number = kNumberLimit; }), is_loss);
  EXPECT_THAT(broken([](ReplicaState& state) { state.history_begin = 13; }), is_loss);
  EXPECT_THAT(broken([](ReplicaState& state) { state.commits.reader_data.resize(kMaxReaderDataBytes + 1); }), is_loss);
  EXPECT_THAT(broken([](ReplicaState& state) { state.steps[1] = -1; }), is_loss);
  EXPECT_THAT(broken([](ReplicaState& state) { state.steps[1] = kNumberLimit; }), is_loss);
}

TEST(ReplicaStateTest, AnyBytesAreAStateOrAnError) {
  const std::string bytes = SerializeReplicaState(Some());
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = bytes.substr(0, random() % (bytes.size() + 1));
    for (uint32_t flips = random() % 4; flips > 0 && !changed.empty(); --flips) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    const auto parsed = ParseReplicaState(changed, kParameters, kRanks);
    EXPECT_TRUE(parsed.ok() || absl::IsDataLoss(parsed.status())) << parsed.status();
  }
}

TEST(ClientStatesTest, ComeBackAsTheyWereSent) {
  const std::vector<std::string> states = {"", std::string("\0b", 2)};
  EXPECT_THAT(ParseClientStates(SerializeClientStates(states), 2), IsOkAndHolds(states));
}

TEST(ClientStatesTest, ThoseOfOtherRanksAndTooLongOnesAreRefused) {
  EXPECT_THAT(ParseClientStates(SerializeClientStates({"a"}), 2), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(ParseClientStates("no message", 1), StatusIs(absl::StatusCode::kInternal));
  const std::string longest(kMaxClientStateBytes, 'x');
  EXPECT_OK(ParseClientStates(SerializeClientStates({longest}), 1));
  EXPECT_THAT(ParseClientStates(SerializeClientStates({longest + "x"}), 1), StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace paramshard::server
