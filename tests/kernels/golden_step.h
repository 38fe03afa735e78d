// The state and steps of the golden cases about the optimizer.

#ifndef PARAMSHARD_TESTS_KERNELS_GOLDEN_STEP_H_
#define PARAMSHARD_TESTS_KERNELS_GOLDEN_STEP_H_

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/muon_math.h"
#include "kernels/optim/optimizers.h"
#include "kernels/optim/orthogonalizer.h"
#include "tests/kernels/golden.h"

namespace paramshard {

// Returns all cases of a kind.
inline std::vector<GoldenCase> ComputableCases(const std::string& kind) { return GoldenCases(kind); }

inline Optimizer OptimizerOf(const std::string& name) {
  for (const OptimizerTraits& optimizer : kOptimizers) {
    if (absl::AsciiStrToLower(optimizer.name) == name) return optimizer.optimizer;
  }
  ADD_FAILURE() << "want an optimizer, got " << name;
  return Optimizer::kAdamW;
}

// One moment of a case, as its files hold it.
class CaseMoment {
 public:
  CaseMoment(const GoldenCase& golden, const std::string& name)
      : golden_(golden), name_(name), stored_as_(golden.options().at(name)), data_(golden.Bytes(DataRole())) {
    if (HasMomentScales(type())) scales_ = golden.Values<float>(ScaleRole());
  }

  MutableMoment View() { return {data_.data(), scales_.data(), type()}; }

  void ExpectAfterStep(size_t step) const {
    EXPECT_TRUE(SameBytes(golden_.BytesOfStep("expected_" + DataRole(), step, data_.size()), data_)) << name_;
    if (!HasMomentScales(type())) return;
    const std::vector<uint8_t> scales = AsBytes(scales_);
    EXPECT_TRUE(SameBytes(golden_.BytesOfStep("expected_" + ScaleRole(), step, scales.size()), scales)) << name_;
  }

 private:
  MomentType type() const {
    if (stored_as_ == "fp8") return MomentType::kFP8;
    return stored_as_ == "bf16" ? MomentType::kBF16 : MomentType::kFP32;
  }
  std::string DataRole() const {
    if (stored_as_ == "fp8") return name_ + "_data";
    return stored_as_ == "bf16" ? name_ + "_bf16" : name_;
  }
  std::string ScaleRole() const { return name_ + "_scale_inv"; }

  const GoldenCase& golden_;
  const std::string name_;
  const std::string stored_as_;
  std::vector<uint8_t> data_;
  std::vector<float> scales_;
};

// The optimizer's state of a case, stored as the case says.
class CaseState {
 public:
  explicit CaseState(const GoldenCase& golden)
      : golden_(golden), exp_avg_(golden, "exp_avg"), exp_avg_sq_(golden, "exp_avg_sq") {
    if (is_split()) {
      weights_ = golden.Bytes("param_bf16");
      remainders_ = golden.Values<int16_t>("param_remainder");
    } else {
      param_ = golden.Values<float>("param");
    }
  }

  // True for a master that is stored as BF16 weights, the row-wise plane's data, and remainders.
  bool is_split() const { return golden_.options().at("master") == "bf16_remainder"; }
  MutablePlane weights() { return {weights_.data()}; }

  OptimizerState View() {
    OptimizerState state = {.master = is_split() ? nullptr : param_.data(),
                            .remainder = is_split() ? remainders_.data() : nullptr,
                            .moments = {exp_avg_.View(), exp_avg_sq_.View()}};
    const Optimizer optimizer = OptimizerOf(golden_.options().at("optimizer"));
    for (int i = TraitsOf(optimizer).moment_count; i < kMomentCount; ++i) state.moments.values[i] = {};
    return state;
  }

  std::vector<float> Master() const {
    if (!is_split()) return param_;
    std::vector<float> master(remainders_.size());
    JoinMasters(weights_.data(), remainders_.data(), static_cast<int64_t>(master.size()), master.data());
    return master;
  }

  void ExpectAfterStep(size_t step) const {
    SCOPED_TRACE(absl::StrCat("after step ", step));
    if (is_split()) {
      ExpectBytes("param_bf16", step, weights_);
      ExpectBytes("param_remainder", step, AsBytes(remainders_));
    } else {
      ExpectBytes("param", step, AsBytes(param_));
    }
    exp_avg_.ExpectAfterStep(step);
    exp_avg_sq_.ExpectAfterStep(step);
  }

 private:
  void ExpectBytes(const std::string& role, size_t step, const std::vector<uint8_t>& actual) const {
    EXPECT_TRUE(SameBytes(golden_.BytesOfStep("expected_" + role, step, actual.size()), actual)) << role;
  }

  const GoldenCase& golden_;
  std::vector<float> param_;
  std::vector<uint8_t> weights_;
  std::vector<int16_t> remainders_;
  CaseMoment exp_avg_;
  CaseMoment exp_avg_sq_;
};

inline OptimizerStep StepOf(const nlohmann::json& options, const nlohmann::json& step) {
  const Hyperparameters values = {.learning_rate = step.at("lr"),
                                  .beta1 = options.at("beta1"),
                                  .beta2 = options.at("beta2"),
                                  .epsilon = options.at("eps"),
                                  .weight_decay = options.at("weight_decay"),
                                  .momentum = options.value("momentum", 0.0f),
                                  .dampening = options.value("dampening", 0.0f)};
  return MakeStep(OptimizerOf(options.at("optimizer")), values, /*bias_correction=*/true, step.at("step"),
                  step.at("inv_scale").get<float>() * step.at("clip_coef").get<float>());
}

// A step of Muon, and its iterations.
inline OptimizerStep MuonStepOf(const nlohmann::json& options, const nlohmann::json& step) {
  OptimizerStep made;
  made.optimizer = OptimizerOf(options.at("optimizer"));
  made.learning_rate = step.at("lr");
  made.weight_decay = options.at("weight_decay");
  made.momentum = options.at("momentum");
  made.gradient_scale = step.at("inv_scale").get<float>() * step.at("clip_coef").get<float>();
  SetMuonRates(options.at("rate_factor"), made);
  return made;
}
inline NewtonSchulz IterationOf(const GoldenCase& golden) {
  NewtonSchulz iteration = {.steps = {}, .epsilon = golden.options().at("eps")};
  for (const nlohmann::json& step : golden.options().at("coefficients")) {
    iteration.steps.push_back({step.at(0), step.at(1), step.at(2)});
  }
  return iteration;
}

// Expects what the file in this role has for a step.
template <typename Value>
void ExpectStep(const GoldenCase& golden, const std::string& role, size_t step, const std::vector<Value>& actual) {
  const std::vector<uint8_t> bytes = AsBytes(actual);
  EXPECT_TRUE(SameBytes(golden.BytesOfStep(role, step, bytes.size()), bytes)) << role << " of step " << step;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_KERNELS_GOLDEN_STEP_H_
