// Matrix and GradientView in host memory.
#include <vector>

#include "client/client.h"
#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GradientViewTest, ValuesAreRoundedToTheType) {
  const std::vector<float> values = {1.0f, -2.5f, 1.00390625f, 1.01171875f};  // the last two lie half way: to even
  std::vector<uint8_t> memory(16);
  GradientView view{.rows = 2, .columns = 2, .type = GradientType::kFP32, .data = absl::MakeSpan(memory)};
  ASSERT_OK(view.Write(values));
  EXPECT_THAT(view.fp32(), ElementsAre(1.0f, -2.5f, 1.00390625f, 1.01171875f));
  view.type = GradientType::kBF16;
  view.data = absl::MakeSpan(memory).subspan(0, 8);
  ASSERT_OK(view.Write(values));
  EXPECT_THAT(view.bf16(), ElementsAre(0x3f80, 0xc020, 0x3f80, 0x3f82));
}

TEST(GradientViewTest, AnotherNumberOfValuesIsRefused) {
  std::vector<uint8_t> memory(16);
  const GradientView view{.rows = 2, .columns = 2, .data = absl::MakeSpan(memory)};
  EXPECT_THAT(view.Write(std::vector<float>(3)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 x 2 values expected, got 3")));
}

TEST(GradientViewTest, NoValuesAreFine) {
  const GradientView view{.rows = 0, .columns = 5};
  EXPECT_OK(view.Write({}));
}

}  // namespace
}  // namespace paramshard
