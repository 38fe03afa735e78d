#include "client/ctl/cell.h"

#include <limits>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace paramshard::ctl {
namespace {

TEST(CellTest, BytesHaveAUnit) {
  EXPECT_EQ(BytesCell(0), "0 B");
  EXPECT_EQ(BytesCell(1023), "1023 B");
  EXPECT_EQ(BytesCell(1024), "1.0 KiB");
  EXPECT_EQ(BytesCell(1536), "1.5 KiB");
  EXPECT_EQ(BytesCell((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(BytesCell(int64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(BytesCell(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

TEST(CellTest, DurationsAreRounded) {
  EXPECT_EQ(DurationCell(absl::ZeroDuration()), "0");
  EXPECT_EQ(DurationCell(absl::Microseconds(15'062.633)), "15.1ms");
  EXPECT_EQ(DurationCell(absl::Microseconds(999'960)), "1s");
  EXPECT_EQ(DurationCell(absl::Seconds(63.249)), "1m3.2s");
}

TEST(CellTest, RealsHaveFourDigits) {
  EXPECT_EQ(RealCell(0), "0");
  EXPECT_EQ(RealCell(1.23456789), "1.235");
  EXPECT_EQ(RealCell(-1e-30), "-1e-30");
  EXPECT_EQ(RealCell(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(RealCell(std::numeric_limits<double>::infinity()), "inf");
}

TEST(CellTest, HashesAreCut) {
  EXPECT_EQ(HashCell("0123456789abcdef"), "0123456789ab");
  EXPECT_EQ(HashCell("0123"), "0123");
  EXPECT_EQ(HashCell(""), "-");
}

TEST(CellTest, TimesAreUniversal) {
  google::protobuf::Timestamp time;
  EXPECT_EQ(TimeCell(time), "-");
  time.set_seconds(1709208000);
  EXPECT_EQ(TimeCell(time), "2024-02-29 12:00:00Z");
}

TEST(CellTest, EnumeratorsLoseTheirPrefix) {
  EXPECT_EQ(EnumCell("FORMAT_MXFP8", "FORMAT_"), "MXFP8");
  EXPECT_EQ(EnumCell("", "FORMAT_"), "?");
}

}  // namespace
}  // namespace paramshard::ctl
