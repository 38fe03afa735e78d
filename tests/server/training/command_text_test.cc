#include "server/training/command_text.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

class CommandTextTest : public testing::Test {
 protected:
  std::string Name(const v1::Command& command) const { return CommandName(spec_, command); }
  std::string Text(const v1::Command& command) const { return CommandText(spec_, command); }

  const ModelSpec spec_ =
      Parse(MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {16, 64}), MakeParameter("a.b", {64})}),
                           MakeUnit("b", {MakeParameter("b.w", {16, 64})})}));
};

TEST_F(CommandTextTest, NamesUnitsAndParameters) {
  EXPECT_EQ(Name(GatherCommand(1, 1, 2, v1::PHASE_BOTH)), "gather b both into slot 2");
  EXPECT_EQ(Name(GatherCommand(1, 0, 0, v1::PHASE_BACKWARD)), "gather a backward into slot 0");
  EXPECT_EQ(Name(PushCommand(1, 0, 1)), "push a from gradient slot 1");
  EXPECT_EQ(Name(CommitCommand(1, 9)), "commit 9");
  EXPECT_EQ(Name(DiscardCommand(1)), "discard");
}

TEST_F(CommandTextTest, NamesWhatThereIsNotByItsNumber) {
  EXPECT_EQ(Name(GatherCommand(1, 77, 0)), "gather unit 77 forward into slot 0");
  EXPECT_EQ(Name(PushCommand(1, -1, 0)), "push unit -1 from gradient slot 0");
  EXPECT_EQ(Name(v1::Command()), "nothing");
}

TEST_F(CommandTextTest, TellsApartCommandsThatDifferInOneField) {
  v1::Command landed = PushCommand(1, 0, 0);
  landed.mutable_push()->set_own_slices_landed(true);
  std::vector<v1::Command> commands = {GatherCommand(1, 0, 0),
                                       GatherCommand(1, 1, 0),
                                       GatherCommand(1, 0, 1),
                                       GatherCommand(1, 0, 0, v1::PHASE_BACKWARD),
                                       PushCommand(1, 0, 0),
                                       PushCommand(1, 0, 1),
                                       landed,
                                       v1::Command(),
                                       DiscardCommand(1),
                                       CommitCommand(1, 1),
                                       CommitCommand(1, 2),
                                       CommitCommand(1, 1, "", 2)};
  const auto changed = [&](auto change) {
    v1::Command command = CommitCommand(1, 1);
    change(*command.mutable_commit());
    commands.push_back(std::move(command));
  };
  // The next float.
  changed([](v1::Commit& commit) { commit.mutable_groups(0)->set_learning_rate(0.10000001f); });
  changed([](v1::Commit& commit) { commit.mutable_groups(0)->set_beta1(0.8f); });
  changed([](v1::Commit& commit) { commit.mutable_groups(0)->set_beta2(0.8f); });
  changed([](v1::Commit& commit) { commit.mutable_groups(0)->set_epsilon(1e-7f); });
  changed([](v1::Commit& commit) { commit.mutable_groups(0)->set_weight_decay(1); });
  changed([](v1::Commit& commit) { commit.set_max_grad_norm(1); });
  changed([](v1::Commit& commit) { commit.set_gradient_scale(1); });
  changed([](v1::Commit& commit) { commit.set_reader_data("a"); });
  changed([](v1::Commit& commit) { commit.set_reader_data(std::string(4096, 'a')); });
  changed([](v1::Commit& commit) { commit.set_reader_data(std::string(4095, 'a') + "b"); });
  for (size_t i = 0; i < commands.size(); ++i) {
    for (size_t j = 0; j < commands.size(); ++j) {
      EXPECT_EQ(Text(commands[i]) == Text(commands[j]), i == j) << Text(commands[i]) << " and " << Text(commands[j]);
    }
  }
}

TEST_F(CommandTextTest, LeavesOutWhatIsEachRanksOwn) {
  EXPECT_EQ(Text(PushCommand(1, 0, 0, {1})), Text(PushCommand(1, 0, 0)));
  EXPECT_EQ(Text(CommitCommand(1, 1, "samples seen: 64")), Text(CommitCommand(1, 1)));
  EXPECT_THAT(Text(CommitCommand(1, 1)), HasSubstr("learning_rate 0.1"));
}

}  // namespace
}  // namespace paramshard::server
