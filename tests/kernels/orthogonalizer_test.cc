#include "kernels/optim/orthogonalizer.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/kernels/orthogonalizer_contract.h"

namespace paramshard {
namespace {

class HostSubject {
 public:
  static std::optional<std::string> WhyNot() { return std::nullopt; }

  absl::Status Run(const NewtonSchulz& iteration, BFloat16Rows& matrix) {
    return orthogonalizer_->Run(iteration, {matrix.View()});
  }

 private:
  std::unique_ptr<Orthogonalizer> orthogonalizer_ = MakeHostOrthogonalizer();
};

INSTANTIATE_TYPED_TEST_SUITE_P(Host, OrthogonalizerContract, HostSubject);

// FNV-1a of the elements' bytes.
uint64_t HashOf(const BFloat16Rows& matrix) {
  uint64_t hash = 0xcbf29ce484222325;
  for (uint16_t element : matrix.elements) hash = (hash ^ element) * 0x100000001b3;
  return hash;
}

TEST(HostOrthogonalizerTest, TheBytesAreTheSameOnEveryMachine) {
  std::vector<float> values(250 * 170);
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  BFloat16Rows wide(170, 250, 250, values);
  BFloat16Rows tall(250, 170, 170, values);
  ASSERT_TRUE(MakeHostOrthogonalizer()->Run(NewtonSchulz(), {wide.View(), tall.View()}).ok());
  EXPECT_EQ(HashOf(wide), 13669015344961228623u);
  EXPECT_EQ(HashOf(tall), 2619835287542282653u);
}

}  // namespace
}  // namespace paramshard
