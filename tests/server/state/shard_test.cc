#include "server/state/shard.h"
#include "kernels/formats/format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/delayed_scaling.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moment.h"
#include "kernels/random/initial_values.h"
#include "server/state/plane_check.h"
#include "server/state/state_move_record.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

v1::ParameterSpec Normal(v1::ParameterSpec parameter, float standard_deviation) {
  parameter.mutable_initial_value()->mutable_normal()->set_standard_deviation(standard_deviation);
  return parameter;
}

// Moments and master of a parameter.
v1::ParameterSpec Stored(v1::ParameterSpec parameter, v1::MomentType exp_avg, v1::MomentType exp_avg_sq,
                         v1::MasterType master = v1::MASTER_TYPE_FP32) {
  parameter.set_exp_avg_type(exp_avg);
  parameter.set_exp_avg_sq_type(exp_avg_sq);
  parameter.set_master_type(master);
  return parameter;
}

v1::ParameterSpec Delayed(std::string name, std::vector<int64_t> shape, v1::AmaxAlgorithm algorithm, int history_length,
                          int margin) {
  v1::ParameterSpec parameter = MakeParameter(std::move(name), std::move(shape), v1::FORMAT_FP8_TENSOR_DELAYED);
  parameter.mutable_delayed_scaling()->set_algorithm(algorithm);
  parameter.mutable_delayed_scaling()->set_history_length(history_length);
  parameter.mutable_delayed_scaling()->set_margin(margin);
  return Normal(std::move(parameter), 0.1f);
}

// Every other format and state, large and small: names say what is special.
v1::UnitSpec EveryFormat() {
  v1::ParameterSpec e5m2 = Normal(MakeParameter("c.current.e5m2", {40, 50}, v1::FORMAT_FP8_TENSOR_CURRENT), 3);
  e5m2.set_element(v1::ELEMENT_E5M2);
  e5m2.set_power_of_two_scales(true);
  v1::ParameterSpec recent = Delayed("c.recent", {129, 20}, v1::AMAX_ALGORITHM_MOST_RECENT, 5, 1);
  recent.set_element(v1::ELEMENT_E5M2);
  return MakeUnit("c", {Normal(MakeParameter("c.fp16", {37, 19}, v1::FORMAT_FP16), 1),
                        Normal(MakeParameter("c.current", {61, 33}, v1::FORMAT_FP8_TENSOR_CURRENT), 1), e5m2,
                        Normal(MakeParameter("c.current.small", {7, 9}, v1::FORMAT_FP8_TENSOR_CURRENT), 1),
                        Delayed("c.delayed", {61, 33}, v1::AMAX_ALGORITHM_MAX, 2, 0), recent,
                        Delayed("c.delayed.small", {3, 5}, v1::AMAX_ALGORITHM_MAX, 1024, 0),
                        Stored(Normal(MakeParameter("c.mx2d", {100, 70}, v1::FORMAT_MXFP8_2D), 1), v1::MOMENT_TYPE_FP16,
                               v1::MOMENT_TYPE_FP8),
                        Normal(MakeParameter("c.nvfp4", {100, 39}, v1::FORMAT_NVFP4_2D), 1),
                        Stored(Normal(MakeParameter("c.nvfp4.small", {3, 5}, v1::FORMAT_NVFP4_2D), 1),
                               v1::MOMENT_TYPE_FP8, v1::MOMENT_TYPE_FP8),
                        Stored(Normal(MakeParameter("c.remainder", {45, 130}, v1::FORMAT_BF16), 1), v1::MOMENT_TYPE_FP8,
                               v1::MOMENT_TYPE_FP16, v1::MASTER_TYPE_BF16_REMAINDER),
                        Stored(Normal(MakeParameter("c.remainder.small", {5, 3}, v1::FORMAT_BF16), 1),
                               v1::MOMENT_TYPE_BF16, v1::MOMENT_TYPE_FP32, v1::MASTER_TYPE_BF16_REMAINDER)});
}

// The same matrices with owners, and stacks of matrices, some of which share blocks of scales.
v1::UnitSpec EveryFormatOwned() {
  v1::UnitSpec unit = EveryFormat();
  unit.set_name("d");
  for (v1::ParameterSpec& parameter : *unit.mutable_parameters()) {
    parameter.mutable_name()->replace(0, 1, "d");
    parameter = Owned(parameter);
  }
  for (const auto& [name, shape, format] : std::vector<std::tuple<std::string, std::vector<int64_t>, v1::Format>>{
           {"d.stack.mx", {5, 32, 48}, v1::FORMAT_MXFP8},
           {"d.stack.block", {7, 48, 70}, v1::FORMAT_FP8_BLOCK_128X128},
           {"d.stack.nvfp4", {4, 16, 39}, v1::FORMAT_NVFP4_2D},
           {"d.stack.current", {3, 7, 33}, v1::FORMAT_FP8_TENSOR_CURRENT},
           {"d.stack.fp32", {2, 3, 5, 40}, v1::FORMAT_FP32}}) {
    *unit.add_parameters() = Owned(Normal(MakeParameter(name, shape, format), 1));
  }
  return unit;
}

// Two large parameters of block formats, one with bf16 moments in a group of its own, and a small one; and the rest.
v1::ModelSpec TestSpec(GradientType accumulators, const MovePolicy& policy) {
  // Bands begin with every 128th row of 64 columns.
  const int64_t columns = policy.moves ? 64 : 70;
  v1::ModelSpec spec = MakeSpec(
      "m",
      {MakeUnit("a", {MakeParameter("a.w", {300, columns}, v1::FORMAT_FP8_BLOCK_128X128), MakeParameter("a.b", {70})}),
       MakeUnit("b",
                {MakeParameter("b.w", {100, 64}, v1::FORMAT_MXFP8), MakeParameter("b.v", {64, 16}, v1::FORMAT_BF16)}),
       EveryFormat(), EveryFormatOwned()});
  spec.set_small_parameter_bytes(1000);
  spec.set_seed(99);
  spec.set_accumulator_type(static_cast<v1::GradientType>(accumulators));
  spec.mutable_units(0)->mutable_parameters(0)->mutable_initial_value()->mutable_normal()->set_standard_deviation(0.5);
  spec.mutable_units(0)->mutable_parameters(1)->mutable_initial_value()->mutable_constant()->set_value(1);
  auto& uniform = *spec.mutable_units(1)->mutable_parameters(0)->mutable_initial_value()->mutable_uniform();
  uniform.set_low(-2);
  uniform.set_high(3);
  v1::ParameterSpec& other = *spec.mutable_units(1)->mutable_parameters(1);
  other = Stored(Normal(other, 2), v1::MOMENT_TYPE_BF16, v1::MOMENT_TYPE_BF16);
  other.set_group(1);
  spec.add_groups();
  v1::ParameterGroup& group = *spec.add_groups();
  group.set_optimizer(v1::OPTIMIZER_ADAM);
  group.set_bias_correction(false);
  return spec;
}

const StepParameters kStep{
    .groups = {{.learning_rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.01f},
               {.learning_rate = 0.3f, .beta1 = 0.8f, .beta2 = 0.99f, .epsilon = 1e-6f, .weight_decay = 0.1f}},
    .gradient_scale = 0.25f};

const std::unique_ptr<ComputeDevice> kDevice = MakeCpuDevice(0);

// Values that a shard returns under its lock.
bool PlanesMatch(const Shard& shard, const ShardExtent& extent) {
  absl::ReaderMutexLock lock(&shard.mutex());
  return *PlanesMatchMaster(shard, extent);
}
int64_t StepsOf(const Shard& shard, const ShardExtent& extent) {
  absl::ReaderMutexLock lock(&shard.mutex());
  return shard.numbers(extent).step;
}
int64_t VersionOf(const Shard& shard) {
  absl::ReaderMutexLock lock(&shard.mutex());
  return shard.version();
}

using Bytes = std::vector<uint8_t>;

Bytes Copied(const HostView& view) { return {view.bytes().begin(), view.bytes().end()}; }
void Append(Bytes& bytes, const HostView& more) { bytes.insert(bytes.end(), more.bytes().begin(), more.bytes().end()); }

// Tensors that are stored in parts: every extent's parts follow the parts of the extent before.
void Append(std::vector<Bytes>& parts, const std::vector<HostView>& more) {
  parts.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) Append(parts[i], more[i]);
}

// One parameter's state in one piece.
struct WholeState {
  std::vector<Bytes> master, exp_avg, exp_avg_sq;
  std::vector<Bytes> planes;  // data, scales, amax of the row-wise one; of the column-wise one

  bool operator==(const WholeState&) const = default;
};

// Appends once the bytes of the whole tensor, which lie at every extent.
void AppendOnce(Bytes& bytes, const HostView& same) {
  if (bytes.empty()) Append(bytes, same);
  EXPECT_TRUE(same.bytes() == bytes) << "extents differ";
}

// One element of an accumulator. BF16 is rounded to nearest, ties to even, on the bits.
uint16_t RoundToBF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float LoadSum(const MutableGradient& sums, int64_t i) {
  return sums.type == GradientType::kFP32 ? static_cast<const float*>(sums.data)[i]
                                          : DecodeBFloat16(static_cast<const uint16_t*>(sums.data)[i]);
}
void StoreSum(float value, const MutableGradient& sums, int64_t i) {
  if (sums.type == GradientType::kFP32) {
    static_cast<float*>(sums.data)[i] = value;
  } else {
    static_cast<uint16_t*>(sums.data)[i] = RoundToBF16(value);
  }
}

// A model in memory, cut over the ranks of some daemons.
class ShardedModel {
 public:
  explicit ShardedModel(int ranks, int daemons = 1, GradientType accumulators = GradientType::kFP32,
                        const MovePolicy& policy = {})
      : spec_(Parse(TestSpec(accumulators, policy))), layout_(spec_, ranks), ranks_per_daemon_(ranks / daemons) {
    for (int daemon = 0; daemon < daemons; ++daemon) books_.push_back(std::make_unique<ScalingBook>(spec_));
    for (int rank = 0; rank < ranks; ++rank) {
      absl::StatusOr<std::unique_ptr<Shard>> shard =
          Shard::Create(spec_, layout_, rank, kDevice.get(), {.moves = policy});
      EXPECT_OK(shard);
      shards_.push_back(*std::move(shard));
    }
    // Encodes as at creation, every daemon for itself; then as an epoch starts.
    for (int rank = 0; rank < ranks; ++rank) EXPECT_OK(shards_[rank]->MeasureAmaxes(BookOf(rank)));
    for (const auto& book : books_) book->Settle(book->Offer());
    Encode();
    BeginEpoch();
  }

  const ModelSpec& spec() const { return spec_; }
  const Layout& layout() const { return layout_; }
  std::vector<std::unique_ptr<Shard>>& shards() { return shards_; }
  int units() const { return static_cast<int>(spec_.units.size()); }

  // The rows of all ranks, one rank's after the other's: what a whole tensor's encoding gives.
  WholeState Whole(int unit, int parameter) const {
    WholeState whole;
    for (const auto& shard : shards_) {
      const ShardExtent* extent = shard->extents().Find(unit, parameter);
      if (extent == nullptr) continue;
      Append(whole.master, *shard->arrays().Stored(*extent, StateTensor::kMaster));
      Append(whole.exp_avg, *shard->arrays().Stored(*extent, StateTensor::kFirstMoment));
      Append(whole.exp_avg_sq, *shard->arrays().Stored(*extent, StateTensor::kSecondMoment));
      const std::vector<PlaneViews> planes = *PlaneBytes(shard->memory(), *extent);
      const Format format = *shard->extents().Spec(*extent).encoding.format;
      const bool one_scale = NeedsAmax(format) && format != Format::kNVFP4_2D;
      whole.planes.resize(3 * planes.size());
      for (size_t i = 0; i < planes.size(); ++i) {
        Append(whole.planes[3 * i], planes[i].data);
        one_scale ? AppendOnce(whole.planes[3 * i + 1], planes[i].scales)
                  : Append(whole.planes[3 * i + 1], planes[i].scales);
        AppendOnce(whole.planes[3 * i + 2], planes[i].amax);
      }
    }
    return whole;
  }
  // In the order of the model.
  std::vector<WholeState> Whole() const {
    std::vector<WholeState> whole;
    for (int unit = 0; unit < units(); ++unit) {
      for (size_t i = 0; i < spec_.units[unit].parameters.size(); ++i) {
        whole.push_back(Whole(unit, static_cast<int>(i)));
      }
    }
    return whole;
  }

  // Adds the owned rows of a whole gradient, as a push does.
  void Push(int unit, const std::vector<std::vector<float>>& gradients, const std::vector<int>& absent = {}) {
    for (const auto& shard : shards_) {
      const ShardGradients::PushTarget target = shard->gradients().BeginPush(unit);
      for (size_t parameter = 0; parameter < target.accumulators.size(); ++parameter) {
        const MutableGradient& sums = target.accumulators[parameter];
        const bool is_absent = std::binary_search(absent.begin(), absent.end(), static_cast<int>(parameter));
        if (sums.data == nullptr || is_absent) continue;
        const ShardExtent& extent = *shard->extents().Find(unit, static_cast<int>(parameter));
        const float* source = gradients[parameter].data() + extent.rows.begin * shard->extents().Spec(extent).columns();
        for (int64_t i = 0; i < extent.elements; ++i) {
          StoreSum(target.overwrite[parameter] ? source[i] : LoadSum(sums, i) + source[i], sums, i);
        }
      }
      shard->gradients().EndPush(unit, absent);
    }
  }
  // A commit. `informed` daemons learn the others' amaxes.
  void Step(int informed = 1000) {
    for (size_t rank = 0; rank < shards_.size(); ++rank) EXPECT_OK(shards_[rank]->Step(kStep, BookOf(rank)));
    Share(informed);
    for (size_t rank = 0; rank < shards_.size(); ++rank) EXPECT_OK(shards_[rank]->EncodeAfterAmax(BookOf(rank)));
  }
  // Does what the start of an epoch does to planes.
  void BeginEpoch() {
    for (size_t rank = 0; rank < shards_.size(); ++rank) EXPECT_OK(shards_[rank]->MeasureAmaxes(BookOf(rank)));
    Share();
    Encode();
  }
  void Encode() {
    for (size_t rank = 0; rank < shards_.size(); ++rank) EXPECT_OK(shards_[rank]->EncodePlanes(BookOf(rank)));
  }
  ScalingBook& BookOf(size_t rank) { return *books_[rank / ranks_per_daemon_]; }

 private:
  void Share(size_t informed = 1000) {
    std::vector<float> largest = books_[0]->Offer();
    for (const auto& book : books_) {
      const std::vector<float> offer = book->Offer();
      for (size_t i = 0; i < offer.size(); ++i) largest[i] = std::max(largest[i], offer[i]);
    }
    for (size_t i = 0; i < std::min(informed, books_.size()); ++i) books_[i]->Settle(largest);
  }

  const ModelSpec spec_;
  const Layout layout_;
  const size_t ranks_per_daemon_;
  std::vector<std::unique_ptr<ScalingBook>> books_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

std::vector<std::vector<float>> RandomGradients(const ModelSpec& spec, int unit, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> gradients;
  for (const ParameterSpec& parameter : spec.units[unit].parameters) {
    std::vector<float>& values = gradients.emplace_back(parameter.rows() * parameter.columns());
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
  }
  return gradients;
}

// Encodes a whole tensor by the kernels alone, without any shard.
class Reference {
 public:
  Reference(const ModelSpec& spec, int unit, int parameter, int64_t index)
      : spec_(spec.units[unit].parameters[parameter]),
        group_(spec.groups[spec_.group]),
        delayed_(spec_.encoding.delayed_scaling.value_or(DelayedScaling::Options()),
                 spec_.encoding.element == ElementType::kE5M2 ? 57344.0f : 448.0f) {
    const int64_t elements = spec_.rows() * spec_.columns();
    for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
      if (plane == Plane::kColumnWise && !HasColumnPlane(*spec_.encoding.format)) continue;
      state_.planes.emplace_back(DataBytes(EncodingOf(spec_.encoding), spec_.rows(), spec_.columns()));
      state_.planes.emplace_back(ScaleBytes(EncodingOf(spec_.encoding), plane, spec_.rows(), spec_.columns()));
      state_.planes.emplace_back(plane == Plane::kRowWise ? AmaxBytes(*spec_.encoding.format) : 0);
    }
    std::vector<float> master(elements);
    FillInitialValues(spec_.initial_value, spec.seed, index, 0, elements, master.data());
    state_.exp_avg = Moment(*spec_.exp_avg_type);
    state_.exp_avg_sq = Moment(*spec_.exp_avg_sq_type);
    if (has_remainder()) {
      state_.master = {Bytes(2 * elements), Bytes(2 * elements)};
      SplitMasters(master.data(), elements, state_.planes[0].data(), remainder());
    } else {
      state_.master = {Bytes(4 * elements)};
      std::memcpy(state_.master[0].data(), master.data(), 4 * elements);
      delayed_.Update(Amax(master.data(), elements));
      Encode({.amax = Amax(master.data(), elements), .scale = delayed_.scale()});
    }
    Finish();
  }

  void Step(const std::vector<float>& gradient, const StepParameters& parameters = kStep) {
    ++step_;
    const Hyperparameters& group = parameters.groups[spec_.group];
    const OptimizerStep step{
        group, group_.optimizer, group_.bias_correction ? BiasCorrection(group.beta1, step_) : 1.0f,
        group_.bias_correction ? BiasCorrection(group.beta2, step_) : 1.0f, parameters.gradient_scale};
    const OptimizerState state{
        .master = has_remainder() ? nullptr : master(),
        .remainder = has_remainder() ? remainder() : nullptr,
        .moments = {ViewOf(state_.exp_avg, *spec_.exp_avg_type), ViewOf(state_.exp_avg_sq, *spec_.exp_avg_sq_type)}};
    const float amax = FusedStep(step, gradient.data(), state, spec_.rows(), spec_.columns(),
                                 EncodingOf(spec_.encoding), PlaneAt(0), PlaneAt(3), {.scale = delayed_.scale()});
    delayed_.Update(amax);
    if (EncodesAfterAmax(*spec_.encoding.format)) Encode({.amax = amax});
    Finish();
  }

  const WholeState& state() const { return state_; }
  const std::string& name() const { return spec_.name; }

 private:
  bool has_remainder() const { return spec_.master_type == MasterType::kBF16Remainder; }
  float* master() { return reinterpret_cast<float*>(state_.master[0].data()); }
  int16_t* remainder() { return reinterpret_cast<int16_t*>(state_.master[1].data()); }
  std::vector<Bytes> Moment(MomentType type) const {
    std::vector<Bytes> parts = {Bytes(spec_.rows() * spec_.columns() * MomentBytes(type))};
    if (HasMomentScales(type)) parts.emplace_back(4 * MomentScaleCount(type, spec_.rows(), spec_.columns()));
    return parts;
  }
  static MutableMoment ViewOf(std::vector<Bytes>& parts, MomentType type) {
    return {.data = parts[0].data(),
            .scales = parts.size() > 1 ? reinterpret_cast<float*>(parts[1].data()) : nullptr,
            .type = type};
  }
  MutablePlane PlaneAt(size_t first) {
    if (first >= state_.planes.size()) return {};
    return {.data = state_.planes[first].data(),
            .scales = state_.planes[first + 1].data(),
            .amax = state_.planes[first + 2].empty() ? nullptr : state_.planes[first + 2].data()};
  }
  void Encode(const TensorScaling& scaling) {
    EncodePlanes(EncodingOf(spec_.encoding), master(), spec_.rows(), spec_.columns(), PlaneAt(0), PlaneAt(3), scaling);
  }
  // The upper half of such a master is the plane.
  void Finish() {
    if (has_remainder()) state_.master[0] = state_.planes[0];
  }

  const ParameterSpec& spec_;
  const ParameterGroup& group_;
  DelayedScaling delayed_;
  WholeState state_;
  int64_t step_ = 0;
};

std::vector<Reference> References(const ModelSpec& spec) {
  std::vector<Reference> references;
  for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
    for (int i = 0; i < static_cast<int>(spec.units[unit].parameters.size()); ++i) {
      references.emplace_back(spec, unit, i, static_cast<int64_t>(references.size()));
    }
  }
  return references;
}

struct Cut {
  int ranks;
  int daemons;
  GradientType accumulators = GradientType::kFP32;
  int64_t band_elements = 0;  // of a state that steps move

  MovePolicy policy() const {
    if (band_elements == 0) return {};
    return {.moves = true, .rule = {.most_bands = int64_t{1} << 40, .least_elements = band_elements}};
  }
};

class ShardingTest : public testing::TestWithParam<Cut> {
 protected:
  void ExpectEqual(const std::vector<Reference>& references) {
    const std::vector<WholeState> whole = model_.Whole();
    for (size_t i = 0; i < references.size(); ++i) {
      // No container in the message: it would print thousands of bytes.
      EXPECT_TRUE(whole[i].master == references[i].state().master) << references[i].name();
      EXPECT_TRUE(whole[i].exp_avg == references[i].state().exp_avg) << references[i].name();
      EXPECT_TRUE(whole[i].exp_avg_sq == references[i].state().exp_avg_sq) << references[i].name();
      EXPECT_TRUE(whole[i].planes == references[i].state().planes) << references[i].name();
    }
    for (const auto& shard : model_.shards()) {
      for (const ShardExtent& extent : shard->extents()) {
        EXPECT_TRUE(PlanesMatch(*shard, extent)) << shard->extents().Spec(extent).name;
      }
    }
  }
  // Pushes the gradients of all units, without the parameters of the last one that `absent` names; then takes them to
  // the references.
  void PushAll(uint32_t seed, const std::vector<int>& absent = {}) {
    size_t index = 0;
    for (int unit = 0; unit < model_.units(); ++unit) {
      const auto gradients = RandomGradients(model_.spec(), unit, 10 * seed + static_cast<uint32_t>(unit));
      const bool is_last = unit + 1 == model_.units();
      model_.Push(unit, gradients, is_last ? absent : std::vector<int>{});
      for (int i = 0; i < static_cast<int>(gradients.size()); ++i, ++index) {
        const bool is_absent = is_last && std::find(absent.begin(), absent.end(), i) != absent.end();
        if (!is_absent) references_[index].Step(Accumulated(gradients[i]));
      }
    }
  }

  // Returns gradients as accumulators keep them.
  static std::vector<float> Accumulated(std::vector<float> gradients) {
    if (GetParam().accumulators == GradientType::kFP32) return gradients;
    for (float& value : gradients) value = DecodeBFloat16(RoundToBF16(value));
    return gradients;
  }

  ShardedModel model_{GetParam().ranks, GetParam().daemons, GetParam().accumulators, GetParam().policy()};
  std::vector<Reference> references_ = References(model_.spec());
};

INSTANTIATE_TEST_SUITE_P(Cuts, ShardingTest,
                         testing::Values(Cut{1, 1}, Cut{2, 1}, Cut{3, 1}, Cut{4, 1}, Cut{5, 1}, Cut{6, 1}, Cut{7, 1},
                                         Cut{8, 1}, Cut{2, 2}, Cut{6, 2}, Cut{8, 4}, Cut{1, 1, GradientType::kBF16},
                                         Cut{3, 1, GradientType::kBF16}, Cut{6, 2, GradientType::kBF16},
                                         Cut{1, 1, GradientType::kFP32, 1}, Cut{1, 1, GradientType::kFP32, 1 << 20},
                                         Cut{2, 1, GradientType::kFP32, 1}, Cut{3, 1, GradientType::kBF16, 5000},
                                         Cut{6, 2, GradientType::kFP32, 3000}),
                         [](const auto& info) {
                           return absl::StrCat(
                               info.param.ranks, "Ranks", info.param.daemons, "Daemons",
                               info.param.accumulators == GradientType::kFP32 ? "" : "BF16",
                               info.param.band_elements == 0 ? "" : "BandsOf",
                               info.param.band_elements == 0 ? "" : std::to_string(info.param.band_elements));
                         });

TEST_P(ShardingTest, InitialStateDoesNotDependOnTheCut) { ExpectEqual(references_); }

TEST_P(ShardingTest, EveryRowHasOneOwner) {
  for (int unit = 0; unit < model_.units(); ++unit) {
    const int parameters = static_cast<int>(model_.spec().units[unit].parameters.size());
    for (int parameter = 0; parameter < parameters; ++parameter) {
      int64_t next = 0;
      for (const auto& shard : model_.shards()) {
        const ShardExtent* extent = shard->extents().Find(unit, parameter);
        if (extent == nullptr) continue;
        EXPECT_EQ(extent->rows.begin, next);
        EXPECT_GT(extent->rows.size(), 0);
        EXPECT_EQ(extent->elements, extent->rows.size() * shard->extents().Spec(*extent).columns());
        next = extent->rows.end;
      }
      EXPECT_EQ(next, model_.spec().units[unit].parameters[parameter].rows());
    }
  }
}

TEST_P(ShardingTest, AStepIsTheKernelsStepOfTheWholeTensor) {
  for (uint32_t step = 0; step < 4; ++step) {
    PushAll(step);
    model_.Step();
    ExpectEqual(references_);
  }
}

// Covers histories of amaxes too: their scales equal the scales of a run without any of it.
TEST_P(ShardingTest, SkippedStepsAbsentGradientsAndNewEpochsChangeNoBit) {
  PushAll(1);
  model_.Step();
  model_.BeginEpoch();
  ExpectEqual(references_);
  model_.Push(2, RandomGradients(model_.spec(), 2, 77));
  for (const auto& shard : model_.shards()) shard->gradients().Drop();
  PushAll(2, {1, 4, 6, 8, 10});
  model_.Step();
  ExpectEqual(references_);
  model_.Encode();
  ExpectEqual(references_);
  PushAll(3);
  model_.Step();
  PushAll(4, {5});
  model_.Step();
  model_.BeginEpoch();
  model_.BeginEpoch();
  ExpectEqual(references_);
  PushAll(5);
  model_.Step();
  ExpectEqual(references_);
}

// A daemon is lost between the step and the exchange: some have settled, some have not.
TEST_P(ShardingTest, AmaxesThatWereNotSharedAreSharedByTheNextEpoch) {
  for (int informed : {0, 1, 3}) {
    SCOPED_TRACE(absl::StrCat(informed, " informed"));
    PushAll(10 + static_cast<uint32_t>(informed), {3, 6});
    model_.Step(informed);
    model_.BeginEpoch();
    ExpectEqual(references_);
    PushAll(20 + static_cast<uint32_t>(informed));
    model_.Step();
    ExpectEqual(references_);
  }
}

TEST_P(ShardingTest, PushesOfOneStepAddUp) {
  const auto first = RandomGradients(model_.spec(), 1, 1);
  const auto second = RandomGradients(model_.spec(), 1, 2);
  model_.Push(1, first);
  model_.Push(1, second);
  model_.Step();
  for (int parameter = 0; parameter < 2; ++parameter) {
    std::vector<float> sum = Accumulated(first[parameter]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += second[parameter][i];
    references_[2 + parameter].Step(Accumulated(sum));
  }
  ExpectEqual(references_);
}

// Nothing of a parameter without a gradient changes, its count of steps included: its next step is its first.
TEST_P(ShardingTest, AnAbsentGradientLeavesItsParameterAlone) {
  const auto first = RandomGradients(model_.spec(), 0, 1);
  const auto second = RandomGradients(model_.spec(), 0, 2);
  model_.Push(0, first, {1});
  model_.Step();
  references_[0].Step(Accumulated(first[0]));
  ExpectEqual(references_);
  model_.Push(0, second);
  model_.Step();
  references_[0].Step(Accumulated(second[0]));
  references_[1].Step(Accumulated(second[1]));
  ExpectEqual(references_);
  for (const auto& shard : model_.shards()) {
    for (const ShardExtent& extent : shard->extents()) {
      EXPECT_EQ(StepsOf(*shard, extent), extent.unit != 0 ? 0 : 2 - extent.parameter);
    }
  }
}

TEST_P(ShardingTest, DroppedGradientsLeaveEveryByte) {
  const std::vector<WholeState> before = model_.Whole();
  model_.Push(0, RandomGradients(model_.spec(), 0, 1));
  for (const auto& shard : model_.shards()) shard->gradients().Drop();
  EXPECT_TRUE(model_.Whole() == before);
  // And a step after it finds none.
  model_.Step();
  EXPECT_TRUE(model_.Whole() == before);
}

TEST_P(ShardingTest, SumsOfSquaresCountWhatWasPushed) {
  auto gradients = RandomGradients(model_.spec(), 1, 1);
  model_.Push(1, gradients, {1});
  double expected = 0;
  for (float value : Accumulated(gradients[0])) expected += static_cast<double>(value) * value;
  SquareSum total;
  for (const auto& shard : model_.shards()) {
    const SquareSum sum = *shard->gradients().SumSquares({});
    total.sum += sum.sum;
    total.non_finite += sum.non_finite;
  }
  EXPECT_NEAR(total.sum, expected, expected * 1e-12);
  EXPECT_EQ(total.non_finite, 0);
}

TEST_P(ShardingTest, NonFiniteGradientsAreCounted) {
  auto gradients = RandomGradients(model_.spec(), 0, 1);
  gradients[0].front() = std::numeric_limits<float>::infinity();
  gradients[0].back() = -std::numeric_limits<float>::infinity();
  gradients[1][3] = std::numeric_limits<float>::quiet_NaN();
  model_.Push(0, gradients);
  int64_t non_finite = 0;
  for (const auto& shard : model_.shards()) non_finite += shard->gradients().SumSquares({})->non_finite;
  EXPECT_EQ(non_finite, 3);
}

// A device that counts what is allocated on it, and what is read from it.
class CountingDevice final : public ComputeDevice {
 public:
  CountingDevice() : ComputeDevice({.kind = DeviceKind::kCpu, .index = 0}) {}

  std::map<std::string, int64_t> bytes;
  mutable int64_t read_bytes = 0;

  absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) override {
    bytes[name] += size_bytes;
    return kDevice->Allocate(name, size_bytes, sharing);
  }
  absl::StatusOr<Memory> Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) override {
    return kDevice->Adopt(name, size_bytes, std::move(fd));
  }
  int64_t AvailableBytes() const override { return kDevice->AvailableBytes(); }
  absl::StatusOr<std::unique_ptr<Memory::Owner>> OpenHostMemory(const Memory& page) override {
    return kDevice->OpenHostMemory(page);
  }
  absl::Status ReadTo(const uint8_t* data, int64_t size_bytes, Sink sink) const override {
    read_bytes += size_bytes;
    return kDevice->ReadTo(data, size_bytes, sink);
  }
  absl::StatusOr<HostView> Read(const uint8_t* data, int64_t size_bytes) const override {
    read_bytes += size_bytes;
    return kDevice->Read(data, size_bytes);
  }
  absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes) const override {
    return kDevice->Write(data, bytes);
  }
  absl::StatusOr<std::unique_ptr<ShardArithmetic>> MakeArithmetic(std::vector<ExtentTensors> tensors,
                                                                  StateMoves moves) override {
    return kDevice->MakeArithmetic(std::move(tensors), std::move(moves));
  }
  int64_t MuonBytes(absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands) const override {
    return kDevice->MuonBytes(extents, bands);
  }
  absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue() override { return kDevice->MakeQueue(); }
};

TEST_P(ShardingTest, SizesAreKnownBeforehand) {
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const ShardPlacement placement = ShardPlacement::Of(model_.spec(), model_.layout(), rank, GetParam().policy());
    const ShardBytes& bytes = placement.bytes;
    CountingDevice device;
    ASSERT_OK_AND_ASSIGN(const auto shard,
                         Shard::Create(model_.spec(), model_.layout(), rank, &device, {.moves = GetParam().policy()}));
    EXPECT_EQ(device.bytes["paramshard-rank-0/master"], placement.master_memory_bytes);
    EXPECT_EQ(device.bytes["paramshard-rank-0/exp_avg"], placement.moment_memory_bytes[MomentKind::kFirst]);
    EXPECT_EQ(device.bytes["paramshard-rank-0/exp_avg_sq"], placement.moment_memory_bytes[MomentKind::kSecond]);
    EXPECT_EQ(device.bytes["paramshard-rank-0/gradients"], bytes.gradients);
    EXPECT_EQ(device.bytes["paramshard-planes"], bytes.planes);
    int64_t total = 0;
    for (const auto& [name, size] : device.bytes) total += size;
    EXPECT_EQ(bytes.Total(), total);
    EXPECT_EQ(shard->extents().bytes().Total(), total);
  }
}

TEST(MuonShardTest, MemoryForMuonIsKnownBeforehand) {
  v1::ParameterSpec table = MakeParameter("table", {100, 64});
  table.set_group(1);
  v1::ModelSpec proto = MakeSpec("m", {MakeUnit("a", {Owned(MakeParameter("a", {48, 64})), table}),
                                       MakeUnit("b", {Owned(MakeParameter("b", {5, 20, 64}))})});
  proto.add_groups()->set_optimizer(v1::OPTIMIZER_MUON);
  proto.add_groups()->set_optimizer(v1::OPTIMIZER_ADAMW);
  const ModelSpec spec = Parse(proto);
  CountingDevice device;
  for (const int ranks : {1, 2, 3}) {
    const Layout layout(spec, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const bool moves : {false, true}) {
        const MovePolicy policy = {.moves = moves};
        const ShardPlacement placement = ShardPlacement::Of(spec, layout, rank, policy);
        ASSERT_OK_AND_ASSIGN(const auto shard, Shard::Create(spec, layout, rank, &device, {.moves = policy}));
        EXPECT_GT(shard->muon_bytes(), 0);
        EXPECT_EQ(shard->muon_bytes(), device.MuonBytes(MuonExtentsOf(spec, placement), placement.moves.bands));
      }
    }
  }
}

// Follows the letter of the states' definitions.
TEST_P(ShardingTest, EveryStateTakesTheBytesOfItsType) {
  for (const auto& shard : model_.shards()) {
    for (const ShardExtent& extent : shard->extents()) {
      const ParameterSpec& spec = shard->extents().Spec(extent);
      const auto moment = [&](MomentType type) -> int64_t {
        const int64_t scales = 4 * extent.rows.size() * ((spec.columns() + 127) / 128);
        if (type == MomentType::kFP32) return 4 * extent.elements;
        if (type == MomentType::kBF16) return 2 * extent.elements;
        return (type == MomentType::kFP16 ? 2 : 1) * extent.elements + scales;
      };
      const auto stored = [&](StateTensor tensor) {
        int64_t bytes = 0;
        const std::vector<HostView> parts = *shard->arrays().Stored(extent, tensor);
        for (const HostView& part : parts) bytes += static_cast<int64_t>(part.size());
        return bytes;
      };
      EXPECT_EQ(stored(StateTensor::kMaster), 4 * extent.elements);
      EXPECT_EQ(stored(StateTensor::kFirstMoment), moment(*spec.exp_avg_type));
      EXPECT_EQ(stored(StateTensor::kSecondMoment), moment(*spec.exp_avg_sq_type));
      const int64_t accumulator = (GetParam().accumulators == GradientType::kFP32 ? 4 : 2) * extent.elements;
      // The upper half is a plane where it stays.
      const bool is_whole = spec.master_type == MasterType::kFP32 || GetParam().policy().moves;
      const int64_t master = (is_whole ? 4 : 2) * extent.elements;
      const int64_t sum = master + accumulator + moment(*spec.exp_avg_type) + moment(*spec.exp_avg_sq_type);
      EXPECT_EQ(shard->extents().OptimizerSize(extent), sum);
    }
  }
}

v1::ParameterSpec Frozen(v1::ParameterSpec parameter, v1::MasterType master = v1::MASTER_TYPE_UNSPECIFIED) {
  parameter.set_trainable(false);
  parameter.set_master_type(master);
  return parameter;
}

TEST(FrozenShardTest, TakesItsPlanesAndAMasterWhereItAsksForOne) {
  const v1::ParameterSpec weight = MakeParameter("w", {64, 64}, v1::FORMAT_MXFP8);
  const v1::ParameterSpec bf16 = MakeParameter("v", {64, 64}, v1::FORMAT_BF16);
  constexpr int64_t kElements = 64 * 64;
  const auto size_of = [](v1::ParameterSpec parameter) {
    const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("u", {std::move(parameter)})}));
    return ShardPlacement::Of(spec, Layout(spec, 1), 0).bytes;
  };
  EXPECT_EQ(size_of(weight).Total() - size_of(weight).planes, 4 * 4 * kElements);
  const ShardBytes alone = size_of(Frozen(weight));
  EXPECT_EQ(alone.planes, size_of(weight).planes);
  EXPECT_EQ(alone.Total(), alone.planes);
  EXPECT_EQ(size_of(Frozen(weight, v1::MASTER_TYPE_FP32)).Total(), alone.planes + 4 * kElements);
  EXPECT_EQ(size_of(Frozen(bf16, v1::MASTER_TYPE_BF16_REMAINDER)).Total(), size_of(bf16).planes + 2 * kElements);
}

// A master with a remainder is filled in parts, in room that only its filling has.
TEST(FrozenShardTest, AMasterWithARemainderBeginsAsThatOfATrainableParameter) {
  const v1::ParameterSpec bf16 = Normal(MakeParameter("v", {3, kFillElements / 2}, v1::FORMAT_BF16), 1);
  v1::ParameterSpec trainable = bf16;
  trainable.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  const auto master_of = [](v1::ParameterSpec parameter, const MovePolicy& policy = {}) {
    const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("u", {std::move(parameter)})}));
    const Layout layout(spec, 1);
    absl::StatusOr<std::unique_ptr<Shard>> shard = Shard::Create(spec, layout, 0, kDevice.get(), {.moves = policy});
    EXPECT_OK(shard);
    return *(*shard)->arrays().Read((*shard)->extents()[0], StateTensor::kMaster);
  };
  std::vector<float> expected(3 * kFillElements / 2);
  FillInitialValues({Initializer::kNormal, 0.0f, 1.0f}, 0, 0, 0, static_cast<int64_t>(expected.size()),
                    expected.data());
  EXPECT_TRUE(master_of(trainable) == expected);
  EXPECT_TRUE(master_of(trainable, {.moves = true}) == expected);
  EXPECT_TRUE(master_of(Frozen(bf16, v1::MASTER_TYPE_BF16_REMAINDER)) == expected);
  EXPECT_TRUE(master_of(Frozen(bf16, v1::MASTER_TYPE_BF16_REMAINDER), {.moves = true}) == expected);
}

// An export reads long rows in parts.
TEST(FrozenShardTest, APartOfARowIsDecodedAndNothingElseIsRead) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kColumns = 1000 * kMomentBlockSize + 17;
  for (const FormatTraits& traits : kFormats) {
    SCOPED_TRACE(traits.name);
    const v1::ParameterSpec weight =
        Frozen(Normal(MakeParameter("w", {kRows, kColumns}, static_cast<v1::Format>(traits.format)), 1));
    const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("u", {weight})}));
    const Layout layout(spec, 1);
    CountingDevice device;
    ASSERT_OK_AND_ASSIGN(const auto shard, Shard::Create(spec, layout, 0, &device));
    ScalingBook book(spec);
    ASSERT_OK(shard->MeasureAmaxes(book));
    book.Settle(book.Offer());
    ASSERT_OK(shard->EncodePlanes(book));
    const ShardExtent& extent = shard->extents()[0];
    ASSERT_OK_AND_ASSIGN(const std::vector<float> all, shard->arrays().Read(extent, StateTensor::kMaster));
    for (const int64_t row : {0, 2}) {
      for (const int64_t first : {int64_t{0}, 3 * kMomentBlockSize, kColumns - 17}) {
        const int64_t columns = std::min(2 * kMomentBlockSize, kColumns - first);
        device.read_bytes = 0;
        ASSERT_OK_AND_ASSIGN(const std::vector<float> part,
                             shard->arrays().Read(extent, StateTensor::kMaster, {{row, row + 1}, first, columns}));
        EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + row * kColumns + first)) << row << ", " << first;
        EXPECT_EQ(static_cast<int64_t>(part.size()), columns);
        EXPECT_LE(device.read_bytes, 2 * 4 * columns) << row << ", " << first;
      }
    }
  }
}

StateMoveRecord MoveRecordOf(const Shard& shard) {
  absl::ReaderMutexLock lock(&shard.mutex());
  return RecordMoves(shard.extents().placement(), shard.position());
}

// To and fro, in one band or in several; and never without a gradient.
TEST_P(ShardingTest, EveryStepMovesTheStateOnce) {
  for (uint32_t step = 0; step < 4; ++step) {
    for (const auto& shard : model_.shards()) {
      const StateMoveRecord record = MoveRecordOf(*shard);
      EXPECT_EQ(record.distance > 0, GetParam().band_elements > 0);
      EXPECT_EQ(record.position, step % 2 == 0 ? 0 : record.distance);
    }
    model_.Step();
    PushAll(step);
    model_.Step();
  }
  ExpectEqual(references_);
}

class MovedShardTest : public testing::Test {
 protected:
  static constexpr MovePolicy kPolicy = {.moves = true, .rule = {.most_bands = 1000, .least_elements = 1}};
  Shard& shard() { return *model_.shards()[0]; }
  void Step() {
    for (int unit = 0; unit < model_.units(); ++unit) model_.Push(unit, RandomGradients(model_.spec(), unit, 7));
    model_.Step();
  }

  ShardedModel model_{1, 1, GradientType::kFP32, kPolicy};
};

TEST_F(MovedShardTest, AnExtentIsCutIntoBands) {
  const StateMoveRecord record = MoveRecordOf(shard());
  ASSERT_FALSE(record.extents.empty());
  EXPECT_THAT(record.extents[0].band_rows, ElementsAre(0, 128, 256));
}

TEST_F(MovedShardTest, WhatIsWrittenWhereTheStateLiesNowIsReadBackAndStepped) {
  Step();
  ASSERT_GT(MoveRecordOf(shard()).position, 0);
  const ShardExtent& extent = *shard().extents().Find(1, 0);
  const std::vector<float> values(extent.elements, 0.25f);
  for (const StateTensor tensor : {StateTensor::kMaster, StateTensor::kFirstMoment, StateTensor::kSecondMoment}) {
    ASSERT_OK(shard().Write(extent, tensor, values));
    EXPECT_THAT(*shard().arrays().Read(extent, tensor), Each(0.25f));
  }
  model_.Encode();
  EXPECT_TRUE(PlanesMatch(shard(), extent));
  Step();
  EXPECT_EQ(MoveRecordOf(shard()).position, 0);
  const std::vector<float> stepped = *shard().arrays().Read(extent, StateTensor::kMaster);
  for (const float value : stepped) EXPECT_NEAR(value, 0.25f, 0.2f);
  EXPECT_THAT(stepped, testing::Not(testing::Contains(0.25f)));
  EXPECT_TRUE(PlanesMatch(shard(), extent));
}

TEST_F(MovedShardTest, MovesAreMadeOfTheirRecordAlone) {
  const ShardPlacement placement = ShardPlacement::Of(model_.spec(), model_.layout(), 0, kPolicy);
  for (int step = 0; step < 2; ++step) {
    const StateMoveRecord record = MoveRecordOf(shard());
    ASSERT_OK_AND_ASSIGN(const StateMoves moves, RebuildMoves(record, placement));
    EXPECT_EQ(moves.position, step == 0 ? 0 : placement.moves.distance);
    EXPECT_EQ(moves.distance, placement.moves.distance);
    EXPECT_EQ(moves.bands.size(), placement.moves.bands.size());
    Step();
  }
}

// The state has all of the master, whatever becomes of the plane.
TEST_F(MovedShardTest, ThePlaneOfAMasterWithARemainderIsACopy) {
  const ShardExtent& split = *shard().extents().Find(2, 10);
  ASSERT_EQ(shard().extents().Spec(split).master_type, MasterType::kBF16Remainder);
  const auto upper_halves = [&] { return Copied((*shard().arrays().Stored(split, StateTensor::kMaster))[0]); };
  const auto plane = [&] { return Copied((*PlaneBytes(shard().memory(), split))[0].data); };
  for (int step = 0; step < 2; ++step) {
    Step();
    EXPECT_TRUE(plane() == upper_halves()) << "a step writes both";
    EXPECT_TRUE(PlanesMatch(shard(), split));
    const std::vector<float> master = *shard().arrays().Read(split, StateTensor::kMaster);
    std::fill_n(shard().memory().planes().data(), shard().memory().planes().size_bytes(), 0xee);
    EXPECT_FALSE(PlanesMatch(shard(), split));
    EXPECT_EQ(*shard().arrays().Read(split, StateTensor::kMaster), master);
    model_.Encode();
    EXPECT_TRUE(plane() == upper_halves());
    EXPECT_TRUE(PlanesMatch(shard(), split));
  }
}

TEST_F(MovedShardTest, AMasterWithARemainderIsExactWhereItLiesNow) {
  const ShardExtent& split = *shard().extents().Find(2, 10);
  for (int step = 0; step < 2; ++step) {
    const std::vector<float> values = RandomGradients(model_.spec(), 2, 5)[10];
    ASSERT_OK(shard().Write(split, StateTensor::kMaster, values));
    EXPECT_EQ(*shard().arrays().Read(split, StateTensor::kMaster), values);
    model_.Encode();
    EXPECT_TRUE(PlanesMatch(shard(), split));
    EXPECT_EQ(*shard().arrays().Read(split, StateTensor::kMaster), values);
    Step();
  }
}

class ShardTest : public testing::Test {
 protected:
  ShardTest() { EXPECT_EQ(model_.shards().size(), 2u); }
  Shard& shard(int rank = 0) { return *model_.shards()[rank]; }
  // Returns the extent of the MXFP8 parameter on rank 0.
  const ShardExtent& extent() { return *shard().extents().Find(1, 0); }
  uint8_t* Served(absl::Span<const uint8_t> span) {
    return shard().memory().planes().data() + (span.data() - shard().memory().planes().data());
  }

  ShardedModel model_{2};
};

TEST_F(ShardTest, StateBeginsAtZeroButForTheMaster) {
  for (const ShardExtent& extent : shard().extents()) {
    EXPECT_THAT(*shard().arrays().Read(extent, StateTensor::kFirstMoment), Each(0.0f));
    EXPECT_THAT(*shard().arrays().Read(extent, StateTensor::kSecondMoment), Each(0.0f));
    EXPECT_EQ(StepsOf(shard(), extent), 0);
  }
  EXPECT_EQ(VersionOf(shard()), 0);
}

TEST_F(ShardTest, ExtentsBeginAtCacheLines) {
  for (const ShardExtent& extent : shard().extents()) {
    for (StateTensor tensor : {StateTensor::kMaster, StateTensor::kFirstMoment, StateTensor::kSecondMoment}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(shard().arrays().Stored(extent, tensor)->back().data()) % 64, 0u);
    }
  }
}

TEST_F(ShardTest, ASmallParameterHasOneOwner) {
  EXPECT_NE(shard(0).extents().Find(0, 1) == nullptr, shard(1).extents().Find(0, 1) == nullptr);
}

TEST_F(ShardTest, TheFirstPushOverwritesAndLaterOnesAdd) {
  const auto overwrites = [&] {
    const ShardGradients::PushTarget target = shard().gradients().BeginPush(1);
    EXPECT_NE(target.accumulators[0].data, nullptr);
    shard().gradients().EndPush(1, {});
    return std::vector<bool>{target.overwrite[0], target.overwrite[1]};
  };
  EXPECT_THAT(overwrites(), ElementsAre(true, true));
  EXPECT_THAT(overwrites(), ElementsAre(false, false));
  shard().gradients().Drop();
  EXPECT_THAT(overwrites(), ElementsAre(true, true));
  model_.Step();
  EXPECT_THAT(overwrites(), ElementsAre(true, true));
}

TEST_F(ShardTest, APushWithoutAGradientIsNone) {
  EXPECT_NE(shard().gradients().BeginPush(1).accumulators[0].data, nullptr);
  shard().gradients().EndPush(1, {0});
  EXPECT_TRUE(shard().gradients().BeginPush(1).overwrite[0]);
  EXPECT_FALSE(shard().gradients().BeginPush(1).overwrite[1]);
}

TEST_F(ShardTest, APushHasNoPlaceForWhatIsOwnedElsewhere) {
  Shard& other = shard(0).extents().Find(0, 1) == nullptr ? shard(0) : shard(1);
  EXPECT_EQ(other.gradients().BeginPush(0).accumulators[1].data, nullptr);
}

TEST_F(ShardTest, EveryStepCountsTheVersion) {
  model_.Step();
  model_.Step();
  shard(1).SetVersion(10);
  EXPECT_EQ(VersionOf(shard()), 2);
  EXPECT_EQ(VersionOf(shard(1)), 10);
}

TEST_F(ShardTest, AFlippedByteOfAnyPlaneIsFound) {
  ASSERT_TRUE(PlanesMatch(shard(), extent()));
  ASSERT_EQ(PlaneBytes(shard().memory(), extent())->size(), 2u);
  int flipped = 0;
  for (const ShardExtent& extent : shard().extents()) {
    if (shard().extents().Spec(extent).master_type == MasterType::kBF16Remainder) continue;
    const std::vector<PlaneViews> planes = *PlaneBytes(shard().memory(), extent);
    for (const PlaneViews& plane : planes) {
      for (const HostView* span : {&plane.data, &plane.scales, &plane.amax}) {
        if (span->size() == 0) continue;
        for (uint8_t* byte : {Served(span->bytes()), Served(span->bytes()) + span->size() - 1}) {
          *byte ^= 0x10;
          EXPECT_FALSE(PlanesMatch(shard(), extent)) << shard().extents().Spec(extent).name;
          *byte ^= 0x10;
          EXPECT_TRUE(PlanesMatch(shard(), extent));
          ++flipped;
        }
      }
    }
  }
  EXPECT_GT(flipped, 40);
}

TEST_F(ShardTest, EncodingAnewRepairsPlanes) {
  std::fill_n(shard().memory().planes().data(), shard().memory().planes().size_bytes(), 0xee);
  EXPECT_FALSE(PlanesMatch(shard(), extent()));
  EXPECT_OK(shard().EncodePlanes(model_.BookOf(0)));
  for (const ShardExtent& each : shard().extents()) EXPECT_TRUE(PlanesMatch(shard(), each));
}

TEST_F(ShardTest, EncodingEndsBeforeTheExtentThatIsForNothing) {
  std::fill_n(shard().memory().planes().data(), shard().memory().planes().size_bytes(), 0xee);
  int asked = 0;
  const auto check_cancelled = [&] { return ++asked < 3 ? absl::OkStatus() : absl::AbortedError("nobody waits"); };
  EXPECT_THAT(shard().EncodePlanes(model_.BookOf(0), check_cancelled),
              StatusIs(absl::StatusCode::kAborted, "nobody waits"));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(PlanesMatch(shard(), shard().extents()[0]));
  EXPECT_TRUE(PlanesMatch(shard(), shard().extents()[1]));
  EXPECT_FALSE(PlanesMatch(shard(), shard().extents()[2]));
  EXPECT_THAT(shard().MeasureAmaxes(model_.BookOf(0), check_cancelled), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(asked, 4);
}

TEST_F(ShardTest, WhatIsWrittenIsReadBack) {
  std::vector<float> values(extent().elements);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.25f;
  for (StateTensor tensor : {StateTensor::kMaster, StateTensor::kFirstMoment, StateTensor::kSecondMoment}) {
    EXPECT_OK(shard().Write(extent(), tensor, values));
    EXPECT_EQ(*shard().arrays().Read(extent(), tensor), values);
    EXPECT_EQ(shard().arrays().Stored(extent(), tensor)->front().size(), values.size() * sizeof(float));
  }
  EXPECT_FALSE(PlanesMatch(shard(), extent())) << "planes are the caller's to encode";
  EXPECT_OK(shard().EncodePlanes(model_.BookOf(0)));
  EXPECT_TRUE(PlanesMatch(shard(), extent()));
  shard().SetStep(extent(), 41);
  EXPECT_EQ(StepsOf(shard(), extent()), 41);
}

TEST_F(ShardTest, WritingOneExtentLeavesTheOthers) {
  const std::vector<WholeState> before = model_.Whole();
  EXPECT_OK(shard().Write(extent(), StateTensor::kMaster, std::vector<float>(extent().elements, 7.0f)));
  EXPECT_OK(shard().Write(extent(), StateTensor::kFirstMoment, std::vector<float>(extent().elements, 8.0f)));
  const std::vector<WholeState> after = model_.Whole();
  EXPECT_TRUE(after[0] == before[0]);
  EXPECT_TRUE(after[1] == before[1]);
  EXPECT_TRUE(after[3] == before[3]);
  EXPECT_FALSE(after[2] == before[2]);
}

TEST_F(ShardTest, Bf16MomentsAreRoundedWhenWritten) {
  const ShardExtent& halves = *shard().extents().Find(1, 1);
  std::vector<float> values(halves.elements, 1.0f + 1.0f / 1024);
  EXPECT_OK(shard().Write(halves, StateTensor::kFirstMoment, values));
  EXPECT_THAT(*shard().arrays().Read(halves, StateTensor::kFirstMoment),
              Each(DecodeBFloat16(EncodeBFloat16(values[0]))));
  EXPECT_EQ(shard().arrays().Stored(halves, StateTensor::kFirstMoment)->front().size(), values.size() * 2);
}

// An import into a master with a remainder gives every bit back.
TEST_F(ShardTest, AMasterWithRemainderIsExact) {
  const ShardExtent& split = *shard().extents().Find(2, 10);
  ASSERT_EQ(shard().extents().Spec(split).master_type, MasterType::kBF16Remainder);
  const std::vector<float> values = RandomGradients(model_.spec(), 2, 5)[10];
  const std::vector<float> rows(values.begin(), values.begin() + split.elements);
  EXPECT_OK(shard().Write(split, StateTensor::kMaster, rows));
  EXPECT_EQ(*shard().arrays().Read(split, StateTensor::kMaster), rows);
  EXPECT_OK(shard().EncodePlanes(model_.BookOf(0)));
  EXPECT_EQ(*shard().arrays().Read(split, StateTensor::kMaster), rows) << "the plane is a part of the master";
}

TEST_F(ShardTest, BlockMomentsAreStoredWithTheirScales) {
  const ShardExtent& blocks = *shard().extents().Find(2, 10);
  std::vector<float> values(blocks.elements, 3.0f);
  values[5] = -6.0f;
  EXPECT_OK(shard().Write(blocks, StateTensor::kFirstMoment, values));
  EXPECT_THAT(*shard().arrays().Read(blocks, StateTensor::kFirstMoment),
              testing::Pointwise(testing::FloatNear(1e-6f), values));
  EXPECT_OK(shard().Write(blocks, StateTensor::kSecondMoment, std::vector<float>(blocks.elements, 4.0f)));
  EXPECT_THAT(*shard().arrays().Read(blocks, StateTensor::kSecondMoment), Each(testing::FloatNear(4.0f, 1e-6f)));
}

TEST_F(ShardTest, AReaderSeesOneVersion) {
  constexpr int kSteps = 20;
  const auto gradients = RandomGradients(model_.spec(), 1, 1);
  // Decided beforehand, by a model of its own.
  std::vector<std::vector<float>> expected;
  ShardedModel reference(2);
  for (int step = 0; step <= kSteps; ++step) {
    expected.push_back(
        *reference.shards()[0]->arrays().Read(*reference.shards()[0]->extents().Find(1, 0), StateTensor::kMaster));
    reference.Push(1, gradients);
    reference.Step();
  }
  std::thread steps([&] {
    for (int step = 0; step < kSteps; ++step) {
      model_.Push(1, gradients);
      model_.Step();
    }
  });
  for (int64_t version = 0; version < kSteps;) {
    const Shard& read = shard();
    absl::ReaderMutexLock lock(&read.mutex());
    version = read.version();
    ASSERT_TRUE(*read.arrays().Read(extent(), StateTensor::kMaster) == expected[version]) << "version " << version;
    ASSERT_TRUE(*PlanesMatchMaster(read, extent())) << "version " << version;
  }
  steps.join();
}

TEST(ShardMemoryTest, WhatDoesNotFitIsRefusedAndNothingStays) {
  const int64_t before = OpenDescriptors();
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {1 << 20, 1 << 20 >> 1})})}));
  const Layout layout(spec, 1);
  EXPECT_THAT(Shard::Create(spec, layout, 0, kDevice.get()), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(ShardMemoryTest, ARankMayOwnNothing) {
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {1, 8})})}));
  const Layout layout(spec, 3);
  ASSERT_OK_AND_ASSIGN(const auto shard, Shard::Create(spec, layout, 2, kDevice.get()));
  EXPECT_EQ(shard->extents().size(), 0);
  EXPECT_EQ(shard->extents().Find(0, 0), nullptr);
  EXPECT_EQ(shard->gradients().SumSquares({})->sum, 0);
  ScalingBook book(spec);
  EXPECT_OK(shard->Step({.groups = {{}}, .gradient_scale = 1}, book));
}

}  // namespace
}  // namespace paramshard::server
