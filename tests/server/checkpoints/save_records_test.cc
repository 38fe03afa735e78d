#include "server/checkpoints/save_records.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observe/metric_registry.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string LineOf(const SaveRecord& record) {
  MetricRegistry metrics;
  SaveRecords records("m", metrics);
  testing::internal::CaptureStderr();
  records.Close(record);
  return testing::internal::GetCapturedStderr();
}

TEST(SaveRecordsTest, TheLogTellsAReasonOnlyIfThereIsOne) {
  EXPECT_THAT(LineOf({.state = SaveState::kPublished}), Not(HasSubstr("why=")));
  EXPECT_THAT(LineOf({.state = SaveState::kAbandoned, .status = absl::DataLossError("no room")}),
              HasSubstr("why=\"DATA_LOSS: no room\""));
}

}  // namespace
}  // namespace paramshard::server
