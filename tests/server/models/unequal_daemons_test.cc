#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// Not only when a trainer opens the model, and on the smaller daemon as well as on the larger one.
TEST(UnequalDaemonsTest, ReplicasAreRefusedWhenTheModelIsCreated) {
  Daemons daemons({2, 1});
  v1::ModelSpec spec = MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {16, 64})})});
  for (int node = 0; node < daemons.nodes(); ++node) {
    EXPECT_THAT(daemons.store(node).CreateOrJoin(Parse(spec)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("want 3, all devices of the world: the daemons have 2, 1 devices")));
  }
  spec.set_shard_size(3);
  for (int node = 0; node < daemons.nodes(); ++node) EXPECT_OK(daemons.store(node).CreateOrJoin(Parse(spec)));
}

}  // namespace
}  // namespace paramshard::server
