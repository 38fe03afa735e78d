#include "server/terms/command_chain.h"

#include <optional>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

CommandChain Chain(const std::vector<std::string>& commands) {
  CommandChain chain;
  for (const std::string& command : commands) chain.Add(0, command);
  return chain;
}

TEST(CommandChainTest, EqualCommandsHaveEqualHashesWhoeverSentThemFirst) {
  CommandChain first, second;
  EXPECT_EQ(first.last(), 0);
  for (const char* command : {"a", "b", "a"}) {
    first.Add(0, command);
    second.Add(7, command);
    EXPECT_EQ(first.hash(), second.hash());
  }
  EXPECT_EQ(first.last(), 3);
  EXPECT_EQ(second.links()[1].rank, 7);
}

TEST(CommandChainTest, OtherCommandsOrdersAndCountsHaveOtherHashes) {
  std::set<absl::uint128> hashes;
  const std::vector<std::vector<std::string>> chains = {
      {}, {"a"}, {"b"}, {"a", "b"}, {"b", "a"}, {"ab"}, {"a", "", "b"}, {"a", "a"}, {"a", ""}, {"", "a"}, {""}};
  for (const auto& commands : chains) hashes.insert(Chain(commands).hash());
  EXPECT_EQ(hashes.size(), chains.size());
}

TEST(CommandChainTest, KnowsTheHashThroughWhatIsNotForgotten) {
  CommandChain chain = Chain({"a", "b", "c"});
  EXPECT_EQ(chain.Through(0), std::nullopt);
  EXPECT_EQ(chain.Through(1), Chain({"a"}).hash());
  EXPECT_EQ(chain.Through(3), chain.hash());
  EXPECT_EQ(chain.Through(4), std::nullopt);
  chain.Forget(2);
  EXPECT_EQ(chain.Through(2), std::nullopt);
  EXPECT_EQ(chain.Through(3), Chain({"a", "b", "c"}).hash());
  chain.Forget(3);
  EXPECT_TRUE(chain.links().empty());
  chain.Add(0, "d");
  EXPECT_EQ(chain.links().front().number, 4);
  EXPECT_EQ(chain.hash(), Chain({"a", "b", "c", "d"}).hash()) << "what is forgotten counts";
}

TEST(CommandChainTest, RemembersTheLatestWithinItsBounds) {
  CommandChain many;
  for (size_t i = 0; i < CommandChain::kMostLinks + 3; ++i) many.Add(0, "");
  EXPECT_EQ(many.links().size(), CommandChain::kMostLinks);
  EXPECT_EQ(many.links().front().number, 4);
  CommandChain large;
  for (int i = 0; i < 5; ++i) large.Add(0, std::string(CommandChain::kMostBytes / 2, 'x'));
  EXPECT_EQ(large.links().size(), 2u);
  large.Add(0, std::string(CommandChain::kMostBytes + 1, 'x'));
  EXPECT_TRUE(large.links().empty());
  EXPECT_EQ(large.last(), 6);
}

}  // namespace
}  // namespace paramshard::server
