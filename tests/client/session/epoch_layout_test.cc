#include "client/internal/epoch_layout.h"

#include "common/model/layout_fingerprint.h"
#include "common/model/limits.h"
#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns the start of an epoch from a daemon of two ranks.
v1::EpochStarted Started() {
  const ModelSpec description = {.name = "m",
                                 .units = {{.name = "u", .parameters = {{.name = "w", .shape = {64, 32}}}}}};
  const ModelSpec spec = ParseModelSpec(ModelSpecToProto(description)).value();
  v1::EpochStarted started;
  *started.mutable_spec() = ModelSpecToProto(spec);
  started.set_shard_size(2);
  started.set_group_rank(1);
  started.set_layout_fingerprint(LayoutFingerprint(Layout(spec, 2)));
  return started;
}

TEST(ComputeLayoutTest, IsTheDaemons) {
  ASSERT_OK_AND_ASSIGN(const Layout layout, ComputeLayout(Started()));
  EXPECT_EQ(layout.ranks(), 2);
  EXPECT_EQ(layout.spec().units[0].parameters[0].name, "w");
  EXPECT_EQ(LayoutFingerprint(layout), Started().layout_fingerprint());
}

TEST(ComputeLayoutTest, ADaemonOfAnotherVersionIsRefused) {
  v1::EpochStarted started = Started();
  started.set_layout_fingerprint(started.layout_fingerprint() + 1);
  EXPECT_THAT(ComputeLayout(started), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               AllOf(HasSubstr("attach m: "), HasSubstr("of different versions"))));
}

// With another shard size the same spec has other places.
TEST(ComputeLayoutTest, AnotherShardSizeThanTheDaemonsIsRefused) {
  v1::EpochStarted started = Started();
  started.set_shard_size(4);
  EXPECT_THAT(ComputeLayout(started), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(ComputeLayoutTest, ASpecThatThisLibraryDoesNotKnowIsRefused) {
  v1::EpochStarted started = Started();
  started.mutable_spec()->mutable_units(0)->mutable_parameters(0)->set_format(static_cast<v1::Format>(99));
  EXPECT_THAT(ComputeLayout(started),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("a format, got 99"), HasSubstr("of different versions"))));
  started = Started();
  started.mutable_spec()->mutable_units(0)->mutable_parameters(0)->add_shape(int64_t{1} << 62);
  EXPECT_THAT(ComputeLayout(started), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(ComputeLayoutTest, RanksThatCannotBeAreRefused) {
  for (const auto& [shard_size, group_rank] :
       {std::pair(0, 0), std::pair(-1, 0), std::pair(kMaxShardSize + 1, 0), std::pair(2, -1), std::pair(2, 2)}) {
    v1::EpochStarted started = Started();
    started.set_shard_size(shard_size);
    started.set_group_rank(group_rank);
    EXPECT_THAT(ComputeLayout(started), StatusIs(absl::StatusCode::kInternal, HasSubstr("shard group")))
        << shard_size << " " << group_rank;
  }
}

}  // namespace
}  // namespace paramshard::internal
