#include "server/data_plane/command_header.h"

#include <gtest/gtest.h>

namespace paramshard::server {
namespace {

TEST(CommandHeaderTest, APushIsNamedByItsUnit) {
  ModelSpec model;
  model.units.resize(1);
  model.units[0].name = "wide";
  ReduceCall call;
  call.number = 3;
  CommandHeader header = CommandHeader::Of(call);
  EXPECT_EQ(HeaderText(header, model), "command 3 push(wide, gradient slot 0)");
  header.unit = 7;
  EXPECT_EQ(HeaderText(header, model), "command 3 push(unit 7, gradient slot 0)");
}

TEST(CommandHeaderTest, PushesOfRanksWithDifferentGradientsAreOneCommand) {
  const CommandHeader header = CommandHeader::Of(ReduceCall());
  CommandHeader without = header;
  without.has_absent = 1;
  EXPECT_TRUE(header == without);
}

}  // namespace
}  // namespace paramshard::server
