#include "client/internal/commit_command.h"

#include <limits>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(MakeCommitTest, OneSetOfNumbersServesEveryGroup) {
  ASSERT_OK_AND_ASSIGN(const v1::Commit commit,
                       MakeCommit({.learning_rate = 0.5f, .max_grad_norm = 2.0f, .client_state = "here"}, 2, 7));
  EXPECT_EQ(commit.commit_number(), 7);
  ASSERT_EQ(commit.groups_size(), 2);
  EXPECT_EQ(commit.groups(1).learning_rate(), 0.5f);
  EXPECT_EQ(commit.max_grad_norm(), 2.0f);
  EXPECT_EQ(commit.gradient_scale(), 1.0f);
  EXPECT_EQ(commit.client_state(), "here");
}

TEST(MakeCommitTest, GroupsGoBeforeTheCommonNumbers) {
  ASSERT_OK_AND_ASSIGN(
      const v1::Commit commit,
      MakeCommit({.learning_rate = 9.0f, .groups = {{.learning_rate = 1.0f}, {.learning_rate = 2.0f}}}, 2, 1));
  EXPECT_EQ(commit.groups(0).learning_rate(), 1.0f);
  EXPECT_EQ(commit.groups(1).learning_rate(), 2.0f);
  EXPECT_FALSE(commit.has_max_grad_norm());
}

TEST(MakeCommitTest, WrongNumberOfGroupsIsRefused) {
  EXPECT_THAT(MakeCommit({.groups = {{}, {}}}, 3, 1), StatusIs(kInvalid, HasSubstr("want none or 3, got 2")));
}

TEST(MakeCommitTest, NumbersOutOfRangeAreRefusedByName) {
  EXPECT_THAT(MakeCommit({.learning_rate = kNaN}, 1, 1), StatusIs(kInvalid, HasSubstr("group 0 learning_rate")));
  EXPECT_THAT(MakeCommit({.learning_rate = kInfinity}, 1, 1), StatusIs(kInvalid));
  EXPECT_THAT(MakeCommit({.learning_rate = -1e-3f}, 1, 1),
              StatusIs(kInvalid, HasSubstr("commit group 0 learning_rate: want a finite number >= 0, got -0.001")));
  EXPECT_THAT(MakeCommit({.learning_rate = 0.0f}, 1, 1), IsOk());
  EXPECT_THAT(MakeCommit({.weight_decay = -0.1f}, 1, 1), StatusIs(kInvalid, HasSubstr("weight_decay")));
  EXPECT_THAT(MakeCommit({.beta1 = 1.0f}, 1, 1), StatusIs(kInvalid, HasSubstr("beta1")));
  EXPECT_THAT(MakeCommit({.beta2 = -0.1f}, 1, 1), StatusIs(kInvalid, HasSubstr("beta2")));
  EXPECT_THAT(MakeCommit({.beta2 = kNaN}, 1, 1), StatusIs(kInvalid, HasSubstr("beta2")));
  EXPECT_THAT(MakeCommit({.epsilon = -1.0f}, 1, 1), StatusIs(kInvalid, HasSubstr("epsilon")));
  EXPECT_THAT(MakeCommit({.weight_decay = kNaN}, 1, 1), StatusIs(kInvalid, HasSubstr("weight_decay")));
  EXPECT_THAT(MakeCommit({.max_grad_norm = 0.0f}, 1, 1),
              StatusIs(kInvalid, AllOf(HasSubstr("max_grad_norm"), HasSubstr("got 0"))));
  EXPECT_THAT(MakeCommit({.gradient_scale = kInfinity}, 1, 1), StatusIs(kInvalid, HasSubstr("gradient_scale")));
  EXPECT_THAT(MakeCommit({.groups = {{}, {.epsilon = kNaN}}}, 2, 1), StatusIs(kInvalid, HasSubstr("group 1 epsilon")));
}

TEST(MakeCommitTest, ClientStateHasALimit) {
  EXPECT_THAT(MakeCommit({.client_state = std::string(65536, 'x')}, 1, 1), IsOk());
  EXPECT_THAT(MakeCommit({.client_state = std::string(65537, 'x')}, 1, 1), StatusIs(kInvalid, HasSubstr("65537")));
}

}  // namespace
}  // namespace paramshard::internal
