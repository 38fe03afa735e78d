#include "common/model/name_index.h"

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;

TEST(NameIndexTest, NamesAreFoundInTheirUnit) {
  const ModelSpec spec = {.name = "m",
                          .units = {{.name = "first", .parameters = {{.name = "a"}, {.name = "b"}}},
                                    {.name = "second", .parameters = {{.name = "c"}}}}};
  const NameIndex names(spec);
  EXPECT_THAT(names.FindUnit("second"), IsOkAndHolds(1));
  EXPECT_THAT(names.FindUnit("third"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("unit third")));
  EXPECT_THAT(names.FindParameter(0, "b"), IsOkAndHolds(1));
  EXPECT_THAT(names.FindParameter(0, "c"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("belongs to unit second")));
  EXPECT_THAT(names.FindParameter(0, "d"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("parameter d")));
  EXPECT_EQ(names.Find("c"), &spec.units[1].parameters[0]);
  EXPECT_EQ(names.Find("second"), nullptr);
  EXPECT_EQ(names.UnitNames({1, 0}), "second, first");
}

}  // namespace
}  // namespace paramshard
