// An optimizer with one moment, which is not in the table: this file has all that a policy needs.

#include "kernels/optim/optimizers.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/codec.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/piece_update.h"
#include "kernels/optim/policy_step.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/optimizer_state.h"
#include "tests/kernels/planes.h"
#include "tests/kernels/random_floats.h"

namespace paramshard {
namespace {

// Gradient descent with momentum.
struct Momentum {
  static constexpr int kMomentCount = 1;

  PARAMSHARD_HOST_DEVICE static void Update(const OptimizerStep& step, float gradient, float& master,
                                            float (&moments)[kMomentCount]) {
    moments[0] = step.beta1 * moments[0] + gradient * step.gradient_scale;
    master = master - step.learning_rate * moments[0];
  }
};

PARAMSHARD_SIMD_CLONES
void UpdateByMomentum(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<Momentum>(step, piece); }

constexpr PieceUpdate kMomentum = {UpdateByMomentum, Momentum::kMomentCount};

// Powers of two: a product with them is exact, so that this file need not forbid the compiler to contract.
constexpr OptimizerStep kStep = {{.learning_rate = 0.125f, .beta1 = 0.5f}, Optimizer::kAdamW, 1.0f, 1.0f, 0.25f};

TEST(OptimizerTest, OneMomentIsSteppedStoredAndEncodedAndTheOtherNotTouched) {
  constexpr int64_t kRows = 33;
  constexpr int64_t kCols = 130;
  const Encoding encoding = {Format::kMXFP8};
  RandomFloats random(5);
  for (MomentType type : kMomentTypes) {
    SCOPED_TRACE(MomentTypeName(type));
    std::vector<float> master = random.Normal(kRows * kCols, 1.0f);
    const std::vector<float> gradient = random.Normal(kRows * kCols, 1.0f);
    Moments momentum(MomentKind::kFirst, type, kRows, kCols, random.Normal(kRows * kCols, 1.0f));

    std::vector<float> expected_master = master;
    std::vector<float> moments = momentum.Get();
    for (size_t i = 0; i < moments.size(); ++i) {
      moments[i] = 0.5f * moments[i] + 0.25f * gradient[i];
      expected_master[i] -= 0.125f * moments[i];
    }
    Moments expected_momentum = momentum;
    expected_momentum.Set(moments);

    OwnedPlanes planes(encoding, kRows, kCols);
    StepByPolicy(kMomentum, kStep, gradient.data(), {.master = master.data(), .moments = {{momentum.View(), {}}}},
                 kRows, kCols, encoding, planes.row_wise.View(), planes.column_wise.View(), {});
    EXPECT_EQ(AsBytes(master), AsBytes(expected_master));
    EXPECT_TRUE(momentum == expected_momentum);
    EXPECT_TRUE(planes == Encode(encoding, expected_master, kRows, kCols));
  }
}

}  // namespace
}  // namespace paramshard
