#include "server/data_plane/absent_gradients.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kParameters = 80;

TEST(AbsentGradientsTest, NothingIsAbsentAtFirst) {
  const AbsentGradients absent(3, kParameters);
  EXPECT_TRUE(absent.empty());
  EXPECT_FALSE(absent.Has(2, 79));
  EXPECT_THAT(absent.OnAllMembers(), IsEmpty());
  EXPECT_TRUE(AbsentGradients(3, kParameters, {}).empty());
  const std::vector<std::vector<int32_t>> none(3);
  EXPECT_TRUE(AbsentGradients(3, kParameters, none).empty());
}

TEST(AbsentGradientsTest, EachMemberHasItsOwnParameters) {
  const std::vector<std::vector<int32_t>> lists = {{0, 63, 79}, {63}, {7, 8, 63, 64}};
  const AbsentGradients absent(3, kParameters, lists);
  for (int member = 0; member < 3; ++member) {
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      EXPECT_EQ(absent.Has(member, parameter), std::count(lists[member].begin(), lists[member].end(), parameter) == 1)
          << member << " " << parameter;
    }
  }
  EXPECT_THAT(absent.OnAllMembers(), ElementsAre(63));
}

TEST(AbsentGradientsTest, ABitmapMayBeWrittenByAnother) {
  AbsentGradients sender(2, kParameters), receiver(2, kParameters);
  sender.Add(0, {1, 15, 79});
  ASSERT_THAT(sender.bitmap(0), SizeIs(10));
  std::copy_n(sender.bitmap(0).data(), 10, receiver.bitmap(0).data());
  receiver.Add(1, {15, 78, 79});
  EXPECT_THAT(receiver.OnAllMembers(), ElementsAre(15, 79));
}

}  // namespace
}  // namespace paramshard::server
