#include "client/ctl/table.h"

#include "gtest/gtest.h"

namespace paramshard::ctl {
namespace {

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"NAME", Align::kLeft}, {"COUNT", Align::kRight}, {"LAST", Align::kLeft}});
  table.AddRow({"a", "1", "x"});
  table.AddRow({"long name", "1234567", ""});
  EXPECT_EQ(table.Text(),
            "NAME         COUNT  LAST\n"
            "a                1  x\n"
            "long name  1234567\n");
}

TEST(TableTest, WithoutRowsThereIsAHeading) {
  EXPECT_EQ(Table({{"NAME", Align::kLeft}, {"COUNT", Align::kRight}}).Text(), "NAME  COUNT\n");
}

TEST(TableTest, WidthCountsCodePoints) {
  Table table({{"N", Align::kRight}, {"X", Align::kLeft}});
  table.AddRow({"\xc3\xa9t\xc3\xa9", "1"});
  table.AddRow({"abcd", "2"});
  EXPECT_EQ(table.Text(),
            "   N  X\n"
            " \xc3\xa9t\xc3\xa9  1\n"
            "abcd  2\n");
}

TEST(TableTest, ControlCharactersAreShown) {
  Table table({{"N", Align::kLeft}});
  table.AddRow({"a\tb\x7f"});
  EXPECT_EQ(table.Text(), "N\na\\x09b\\x7f\n");
}

}  // namespace
}  // namespace paramshard::ctl
