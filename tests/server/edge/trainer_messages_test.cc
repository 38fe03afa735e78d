#include "server/edge/trainer_messages.h"

#include <optional>

#include "absl/status/status.h"
#include "common/model/model_spec_proto.h"
#include "gtest/gtest.h"
#include "tests/server/state/test_spec.h"

namespace paramshard::server {
namespace {

TEST(TrainerMessagesTest, AGreetingSaysEverything) {
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {4, 4}, v1::FORMAT_BF16)})}));
  const v1::EpochStarted started = ToProto(EpochStartInfo{
      .epoch = 2,
      .numbers = {.commit_number = 5, .version = 4, .skipped = 1},
      .client_state = "state",
      .last_commit =
          CommitAnswer{.commit_number = 5, .version = 4, .skipped = true, .gradient_norm = 0.5, .non_finite_count = 3},
      .spec = &spec,
      .shard_size = 6,
      .layout_fingerprint = 7,
      .world_size = 8,
      .group_rank = 1,
      .client_lands_own_pieces = true,
      .client_lands_own_gradients = true,
      .gpu_uuid = "0123456789abcdef"});
  EXPECT_EQ(started.epoch(), 2);
  EXPECT_EQ(started.commit_number(), 5);
  EXPECT_EQ(started.version(), 4);
  EXPECT_EQ(started.client_state(), "state");
  EXPECT_EQ(started.last_commit().commit_number(), 5);
  EXPECT_EQ(started.last_commit().version(), 4);
  EXPECT_TRUE(started.last_commit().skipped());
  EXPECT_EQ(started.last_commit().gradient_norm(), 0.5);
  EXPECT_EQ(started.last_commit().non_finite_count(), 3);
  EXPECT_EQ(started.spec().SerializeAsString(), ModelSpecToProto(spec).SerializeAsString());
  EXPECT_EQ(started.shard_size(), 6);
  EXPECT_EQ(started.layout_fingerprint(), 7);
  EXPECT_EQ(started.world_size(), 8);
  EXPECT_EQ(started.group_rank(), 1);
  EXPECT_TRUE(started.client_lands_own_pieces());
  EXPECT_TRUE(started.client_lands_own_gradients());
  EXPECT_EQ(started.gpu_uuid(), "0123456789abcdef");
}

TEST(TrainerMessagesTest, AnAnswerThatIsUnknownIsAbsent) {
  const ModelSpec spec;
  EpochStartInfo greeting;
  greeting.spec = &spec;
  EXPECT_FALSE(ToProto(greeting).has_last_commit());
}

TEST(TrainerMessagesTest, AFarewellSaysWhyAndWhereToResume) {
  const v1::EpochEnded ended = ToProto(EpochEndInfo{
      .epoch = 2, .numbers = {.commit_number = 5, .version = 4, .skipped = 1}, .why = absl::AbortedError("gone")});
  EXPECT_EQ(ended.epoch(), 2);
  EXPECT_EQ(ended.commit_number(), 5);
  EXPECT_EQ(ended.version(), 4);
  EXPECT_EQ(ended.why().code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(ended.why().text(), "gone");
}

TEST(TrainerMessagesTest, AFarewellBeforeAnEpochNamesNone) {
  const v1::EpochEnded ended =
      ToProto(EpochEndInfo{.epoch = std::nullopt, .numbers = {}, .why = absl::AbortedError("none started")});
  EXPECT_FALSE(ended.has_epoch());
}

}  // namespace
}  // namespace paramshard::server
