// Gradients that some ranks do not have, in every kind of world, against a training in plain loops that follows the
// letter of docs/reference/numerics.md.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::Each;

constexpr int kExperts = 70;  // more than one word of bits
constexpr int kUnits = 2;
constexpr float kLimit = 1e-3f;

struct Case {
  std::string name;
  std::vector<int> device_counts;
  v1::GradientSums sums = v1::GRADIENT_SUMS_AT_PUSH;
  int shard_size = 0;  // 0: the devices of a daemon
  v1::GradientType accumulators = v1::GRADIENT_TYPE_FP32;
};

// Decides whether a rank has a gradient of a parameter in a push.
using HasGradient = std::function<bool(int rank, int unit, int parameter)>;

float FromBits(uint32_t bits) { return absl::bit_cast<float>(bits); }

float RoundToBF16(float value) {
  const auto bits = absl::bit_cast<uint32_t>(value);
  return FromBits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}

// State of one parameter in plain loops.
struct Reference {
  explicit Reference(int64_t elements) : master(elements), exp_avg(elements), exp_avg_sq(elements) {}

  std::vector<float> master, exp_avg, exp_avg_sq;
  std::optional<std::vector<float>> gradient;  // since the last commit
  int64_t step = 0;
};

class AbsentGradientsTest : public testing::TestWithParam<Case> {
 protected:
  static v1::ModelSpec Spec() {
    std::vector<v1::ParameterSpec> experts;
    for (int i = 0; i < kExperts; ++i) experts.push_back(MakeParameter(absl::StrCat("experts.", i), {3 + i % 4, 5}));
    v1::ModelSpec spec = MakeSpec("m", {MakeUnit("w", {MakeParameter("w.w", {37, 33}), MakeParameter("w.b", {33})}),
                                        MakeUnit("experts", std::move(experts))});
    spec.set_small_parameter_bytes(70);  // most experts are cut, some are whole on one rank
    spec.set_gradient_sums(GetParam().sums);
    spec.set_accumulator_type(GetParam().accumulators);
    if (GetParam().shard_size > 0) spec.set_shard_size(GetParam().shard_size);
    return spec;
  }

  void SetUp() override {
    daemons_.Create(Spec());
    daemons_.Attach();
    group_ = GetParam().shard_size > 0 ? GetParam().shard_size : GetParam().device_counts.front();
    references_.resize(kUnits);
    for (int unit = 0; unit < kUnits; ++unit) {
      for (const ParameterSpec& parameter : spec().units[unit].parameters) {
        references_[unit].emplace_back(parameter.rows() * parameter.columns());
      }
    }
  }

  const ModelSpec& spec() { return daemons_.model(0).spec(); }
  bool takes_one_push() const { return GetParam().accumulators == v1::GRADIENT_TYPE_BF16; }

  // Gradients of all magnitudes, so that the order and the number of additions show; some are -0.
  static std::vector<float> Gradients(uint32_t seed, int rank, int unit, int parameter, size_t elements) {
    std::seed_seq seeds{seed, static_cast<uint32_t>(rank), static_cast<uint32_t>(unit),
                        static_cast<uint32_t>(parameter)};
    std::mt19937 random(seeds);
    std::vector<float> values(elements);
    for (float& value : values) {
      value = std::ldexp(static_cast<float>(random() % 262143) - 131071.0f, static_cast<int>(random() % 24) - 20);
      if (random() % 8 == 0) value = -0.0f;
    }
    return values;
  }

  // Every rank pushes both units. Memory of what a rank does not have is not a number.
  void Push(uint32_t seed, const HasGradient& has) {
    const int slot = spec().gradient_slots - 1;
    for (int unit = 0; unit < kUnits; ++unit) {
      int64_t number = 0;
      for (int rank = 0; rank < daemons_.ranks(); ++rank) {
        FakeTrainer& trainer = daemons_.trainer(rank);
        trainer.FillGradients(slot, unit, std::numeric_limits<float>::quiet_NaN());
        std::vector<int> absent;
        for (int i = 0; i < static_cast<int>(references_[unit].size()); ++i) {
          if (!has(rank, unit, i)) {
            absent.push_back(i);
            continue;
          }
          const std::vector<float> values = Gradients(seed, rank, unit, i, references_[unit][i].master.size());
          std::copy(values.begin(), values.end(),
                    reinterpret_cast<float*>(trainer.gradient_slot(slot) +
                                             daemons_.model(0).layout().units()[unit].parameters[i].gradient_offset));
        }
        number = Send(trainer, unit, slot, absent);
      }
      landed_.insert(unit);
      for (int rank = 0; rank < daemons_.ranks(); ++rank) {
        ASSERT_TRUE(daemons_.trainer(rank).AwaitDrained(slot, number));
      }
      for (int i = 0; i < static_cast<int>(references_[unit].size()); ++i) Accumulate(seed, has, unit, i);
    }
  }

  // Sends a push as the client library does: the first one of a unit in a step lands the rank's own rows, where sums
  // wait for the commit.
  int64_t Send(FakeTrainer& trainer, int unit, int slot, const std::vector<int>& absent) {
    const Layout& layout = daemons_.model(0).layout();
    v1::Command command = PushCommand(trainer.next_command(), unit, slot, absent);
    if (GetParam().sums == v1::GRADIENT_SUMS_AT_COMMIT && !landed_.contains(unit)) {
      command.mutable_push()->set_own_slices_landed(true);
      uint8_t* const slots = trainer.slot(0) - layout.slot_offsets()[0];
      for (const PieceCopy& piece : layout.LandingCopies(unit, trainer.rank(), slot, absent)) {
        std::copy_n(slots + piece.source, piece.bytes, slots + piece.target);
      }
    }
    trainer.Fill(slot, command.number());
    return trainer.Send(command);
  }

  static void Add(const std::vector<float>& more, std::optional<std::vector<float>>& sum) {
    if (!sum.has_value()) {
      sum = more;
      return;
    }
    for (size_t i = 0; i < more.size(); ++i) (*sum)[i] = (*sum)[i] + more[i];
  }

  // "Sums of gradients".
  void Accumulate(uint32_t seed, const HasGradient& has, int unit, int parameter) {
    Reference& reference = references_[unit][parameter];
    std::optional<std::vector<float>> sum;
    for (int start = 0; start < daemons_.ranks(); start += group_) {
      std::optional<std::vector<float>> of_group;
      for (int rank = start; rank < start + group_; ++rank) {
        if (has(rank, unit, parameter)) {
          Add(Gradients(seed, rank, unit, parameter, reference.master.size()), of_group);
        }
      }
      if (of_group.has_value()) Add(*of_group, sum);
    }
    if (!sum.has_value()) return;
    Add(*sum, reference.gradient);
    if (takes_one_push()) {
      for (float& value : *reference.gradient) value = RoundToBF16(value);
    }
  }

  // "Unscale, mean and clip" with a limit, then "Adam" with the hyper-parameters of CommitCommand(). The norm is the
  // daemon's, which is within a rounding of this one, so that the rest is the same to the last bit.
  void ExpectCommit() {
    EXPECT_THAT(Marked(), Each(HasGradients()));
    const wire::CommitRecord answer = daemons_.Commit([](v1::Commit& commit) { commit.set_max_grad_norm(kLimit); });
    landed_.clear();
    const float k = 1.0f / static_cast<float>(daemons_.ranks());
    double squares = 0;
    for (const std::vector<Reference>& unit : references_) {
      for (const Reference& reference : unit) {
        if (!reference.gradient.has_value()) continue;
        for (const float g : *reference.gradient) squares += static_cast<double>(g) * g;
      }
    }
    const double norm = static_cast<double>(k) * std::sqrt(squares);
    EXPECT_NEAR(answer.gradient_norm, norm, norm * 1e-12);
    const auto clip = static_cast<float>(std::min(1.0, kLimit / (answer.gradient_norm + 1e-6)));
    for (std::vector<Reference>& unit : references_) {
      for (Reference& reference : unit) Step(k * clip, reference);
    }
    ExpectState();
  }

  static void Step(float k, Reference& reference) {
    if (!reference.gradient.has_value()) return;
    ++reference.step;
    const auto c1 = static_cast<float>(1 - std::pow(static_cast<double>(0.9f), reference.step));
    const auto c2 = static_cast<float>(1 - std::pow(static_cast<double>(0.99f), reference.step));
    for (size_t i = 0; i < reference.master.size(); ++i) {
      const float g = (*reference.gradient)[i] * k;
      reference.exp_avg[i] = 0.9f * reference.exp_avg[i] + (1 - 0.9f) * g;
      reference.exp_avg_sq[i] = 0.99f * reference.exp_avg_sq[i] + ((1 - 0.99f) * g) * g;
      const float d = std::sqrt(reference.exp_avg_sq[i] / c2) + 1e-8f;
      reference.master[i] = reference.master[i] - 0.1f * ((reference.exp_avg[i] / c1) / d + 0.0f * reference.master[i]);
    }
    reference.gradient.reset();
  }

  // Returns which parameters have a gradient on any rank.
  std::vector<bool> HasGradients() const {
    std::vector<bool> has;
    for (const std::vector<Reference>& unit : references_) {
      for (const Reference& reference : unit) has.push_back(reference.gradient.has_value());
    }
    return has;
  }

  // Returns the parameters with a gradient, as each daemon of a replica would write them down; of one group over all
  // daemons, what they hold together. Called while no trainer has sent anything new.
  std::vector<std::vector<bool>> Marked() {
    std::vector<std::vector<bool>> marked;
    for (int node = 0; node < daemons_.nodes(); ++node) {
      if (node == 0 || GetParam().shard_size == 0) marked.emplace_back(HasGradients().size());
      for (const auto& shard : daemons_.model(node).committed().shards) shard->gradients().Mark(marked.back());
    }
    return marked;
  }

  void ExpectState() {
    for (int node = 0; node < daemons_.nodes(); ++node) {
      for (const auto& shard : daemons_.model(node).committed().shards) {
        for (const ShardExtent& extent : shard->extents()) {
          const Reference& reference = references_[extent.unit][extent.parameter];
          ExpectRows(*shard, extent, StateTensor::kMaster, reference.master);
          ExpectRows(*shard, extent, StateTensor::kFirstMoment, reference.exp_avg);
          ExpectRows(*shard, extent, StateTensor::kSecondMoment, reference.exp_avg_sq);
          absl::ReaderMutexLock lock(&shard->mutex());
          EXPECT_EQ(shard->numbers(extent).step, reference.step) << shard->extents().Spec(extent).name;
        }
      }
    }
  }

  static void ExpectRows(const Shard& shard, const ShardExtent& extent, StateTensor tensor,
                         const std::vector<float>& whole) {
    absl::ReaderMutexLock lock(&shard.mutex());
    ASSERT_OK_AND_ASSIGN(const std::vector<float> rows, shard.arrays().Read(extent, tensor));
    const auto first = whole.begin() + extent.rows.begin * shard.extents().Spec(extent).columns();
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), first, first + extent.elements))
        << "tensor " << static_cast<int>(tensor) << " of " << shard.extents().Spec(extent).name;
  }

  Daemons daemons_{GetParam().device_counts};
  int group_ = 0;
  std::set<int> landed_;                            // units that have been pushed since the last commit
  std::vector<std::vector<Reference>> references_;  // by unit and parameter
};

INSTANTIATE_TEST_SUITE_P(
    Worlds, AbsentGradientsTest,
    testing::Values(
        Case{.name = "OneRank", .device_counts = {1}}, Case{.name = "TwoRanks", .device_counts = {2}},
        Case{.name = "ThreeRanks", .device_counts = {3}},
        Case{.name = "AtCommit", .device_counts = {3}, .sums = v1::GRADIENT_SUMS_AT_COMMIT},
        Case{.name = "Replicas", .device_counts = {2, 2}}, Case{.name = "ManyReplicas", .device_counts = {1, 1, 1}},
        Case{.name = "OneGroup", .device_counts = {1, 2}, .shard_size = 3},
        Case{.name = "BF16", .device_counts = {3}, .accumulators = v1::GRADIENT_TYPE_BF16},
        Case{.name = "BF16AtCommit",
             .device_counts = {2},
             .sums = v1::GRADIENT_SUMS_AT_COMMIT,
             .accumulators = v1::GRADIENT_TYPE_BF16},
        Case{.name = "BF16Replicas", .device_counts = {2, 2}, .accumulators = v1::GRADIENT_TYPE_BF16},
        Case{.name = "BF16OneGroup", .device_counts = {1, 2}, .shard_size = 3, .accumulators = v1::GRADIENT_TYPE_BF16}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// Each rank has some, as ranks that route tokens to experts do.
HasGradient Routed(uint32_t seed) {
  return [seed](int rank, int unit, int parameter) {
    std::seed_seq seeds{seed, static_cast<uint32_t>(rank), static_cast<uint32_t>(unit),
                        static_cast<uint32_t>(parameter)};
    return std::mt19937(seeds)() % 3 == 0;
  };
}

bool None(int, int, int) { return false; }
bool All(int, int, int) { return true; }

TEST_P(AbsentGradientsTest, AddNothingAndLeaveAloneWhatNoRankHas) {
  for (uint32_t step = 1; step <= 5; ++step) {
    Push(step, Routed(step));
    ExpectCommit();
  }
}

TEST_P(AbsentGradientsTest, OfOnePushMayBeThereInAnother) {
  if (takes_one_push()) GTEST_SKIP() << "BF16 accumulators take one push";
  for (uint32_t step = 1; step <= 4; ++step) {
    Push(2 * step, Routed(2 * step));
    Push(2 * step + 1, step == 3 ? HasGradient(All) : Routed(2 * step + 1));
    ExpectCommit();
  }
}

TEST_P(AbsentGradientsTest, OfAllParametersOfOneRankLeaveTheOthers) {
  Push(1, [](int rank, int, int) { return rank != 0; });
  if (daemons_.ranks() > 1) ExpectCommit();
}

TEST_P(AbsentGradientsTest, OfAllParametersOnAllRanksAreAStepWithoutPushes) {
  Push(1, All);
  ExpectCommit();
  Push(2, None);
  ExpectCommit();
  const wire::CommitRecord without_pushes = daemons_.Commit();
  EXPECT_EQ(without_pushes.gradient_norm, 0);
  ExpectState();
  Push(3, All);
  ExpectCommit();
}

TEST_P(AbsentGradientsTest, LeaveNoTraceAfterADiscard) {
  Push(1, Routed(1));
  daemons_.Discard();
  landed_.clear();
  for (std::vector<Reference>& unit : references_) {
    for (Reference& reference : unit) reference.gradient.reset();
  }
  Push(2, Routed(2));
  ExpectCommit();
}

}  // namespace
}  // namespace paramshard::server
