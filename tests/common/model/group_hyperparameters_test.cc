#include "common/model/group_hyperparameters.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;

// Iterates over the list, so that a hyper-parameter that a conversion or a check lacks is found.
TEST(GroupHyperparametersTest, MessagesCarryEachOfThem) {
  Hyperparameters sent;
  float value = 0.25f;
  for (const HyperparameterTraits& each : kHyperparameters) sent.*each.member = value /= 2;
  const v1::GroupHyperparameters proto = HyperparametersToProto(sent);
  EXPECT_EQ(proto.GetDescriptor()->field_count(), kHyperparameterCount);
  for (const HyperparameterTraits& each : kHyperparameters) {
    const auto* field = proto.GetDescriptor()->FindFieldByName(each.name);
    ASSERT_NE(field, nullptr) << each.name;
    EXPECT_EQ(proto.GetReflection()->GetFloat(proto, field), sent.*each.member) << each.name;
    EXPECT_EQ(HyperparametersFromProto(proto).*each.member, sent.*each.member) << each.name;
  }
}

TEST(GroupHyperparametersTest, EachIsRefusedByNameOutOfItsRange) {
  EXPECT_OK(CheckHyperparameters(0, {}));
  for (const HyperparameterTraits& each : kHyperparameters) {
    for (const float bad : {-1e-3f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Hyperparameters values;
      values.*each.member = bad;
      EXPECT_THAT(CheckHyperparameters(3, values),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("group 3 ", each.name, ": "))));
    }
  }
  EXPECT_THAT(CheckHyperparameters(0, {.beta2 = 1.0f}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want 0 <= beta2 < 1, got 1")));
}

}  // namespace
}  // namespace paramshard
