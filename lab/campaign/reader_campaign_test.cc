// A short campaign of readers; a long one is ./dev reader-campaign.
#include "lab/campaign/reader_campaign.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/environment.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

TEST(ReaderCampaignTest, NoReaderAcceptsAWrongByteOrHoldsATrainer) {
  const ReaderCampaignResult result = RunReaderCampaign({.daemon = Program(PARAMSHARDD),
                                                         .ctl = Program(PARAMSHARDCTL),
                                                         .rounds = 2,  // one of each gradient_sums
                                                         .commits = 60,
                                                         .kills = 2,
                                                         .seed = FirstSeed(1)});
  EXPECT_OK(result.status) << result.Table();
  EXPECT_GT(result.numbers[kAccepted], 0);
  const nlohmann::json json = nlohmann::json::parse(result.Json());
  EXPECT_EQ(json["held"], result.status.ok());
  EXPECT_EQ(json["serverKills"], 4);
}

}  // namespace
}  // namespace paramshard::test
