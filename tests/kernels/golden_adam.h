// Which golden cases can be computed, and the state and steps of those about the optimizer.

#ifndef PARAMSHARD_TESTS_KERNELS_GOLDEN_ADAM_H_
#define PARAMSHARD_TESTS_KERNELS_GOLDEN_ADAM_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/codec.h"
#include "kernels/optim/adam.h"
#include "tests/kernels/golden.h"

namespace paramshard {

// Why a case cannot be computed yet; empty when it can.
inline std::string MissingFor(const GoldenCase& golden) {
  if (golden.kind() == "elements") return "";
  if (golden.kind() == "quantize" || golden.kind() == "adam_and_quantize") {
    const absl::Status status = CheckEncodable(golden.encoding());
    EXPECT_TRUE(status.ok() || absl::IsUnimplemented(status)) << status;
    if (!status.ok()) return std::string(FormatName(golden.encoding().format));
  }
  if (golden.kind() == "adam" || golden.kind() == "adam_and_quantize") {
    for (const char* part : {"master", "exp_avg", "exp_avg_sq"}) {
      const std::string stored = golden.options().at(part);
      if (stored == "fp8" || stored == "bf16_remainder") return "state in " + stored;
    }
    return "";
  }
  return golden.kind() == "quantize" ? "" : golden.kind();
}

inline std::vector<GoldenCase> ComputableCases(const std::string& kind) {
  std::vector<GoldenCase> cases = GoldenCases(kind);
  std::erase_if(cases, [](const GoldenCase& golden) { return !MissingFor(golden).empty(); });
  EXPECT_FALSE(cases.empty());
  return cases;
}

// The optimizer's state of a case, stored as the case says.
class CaseState {
 public:
  explicit CaseState(const GoldenCase& golden)
      : golden_(golden),
        param_(golden.Values<float>("param")),
        exp_avg_(golden.Bytes(Role("exp_avg"))),
        exp_avg_sq_(golden.Bytes(Role("exp_avg_sq"))) {}

  AdamState View() {
    return {.master = param_.data(),
            .exp_avg = {.data = exp_avg_.data(), .type = Type("exp_avg")},
            .exp_avg_sq = {.data = exp_avg_sq_.data(), .type = Type("exp_avg_sq")}};
  }

  void ExpectAfterStep(size_t step) const {
    SCOPED_TRACE(absl::StrCat("after step ", step));
    EXPECT_TRUE(SameBytes(Expected("param", step, AsBytes(param_).size()), AsBytes(param_)));
    EXPECT_TRUE(SameBytes(Expected(Role("exp_avg"), step, exp_avg_.size()), exp_avg_));
    EXPECT_TRUE(SameBytes(Expected(Role("exp_avg_sq"), step, exp_avg_sq_.size()), exp_avg_sq_));
  }

 private:
  MomentType Type(const std::string& moment) const {
    return golden_.options().at(moment) == "bf16" ? MomentType::kBF16 : MomentType::kFP32;
  }
  std::string Role(const std::string& moment) const {
    return Type(moment) == MomentType::kBF16 ? moment + "_bf16" : moment;
  }
  std::vector<uint8_t> Expected(const std::string& role, size_t step, size_t size) const {
    const std::vector<uint8_t> all = golden_.Bytes("expected_" + role);
    return {all.begin() + step * size, all.begin() + (step + 1) * size};
  }

  const GoldenCase& golden_;
  std::vector<float> param_;
  std::vector<uint8_t> exp_avg_;
  std::vector<uint8_t> exp_avg_sq_;
};

inline AdamStep StepOf(const nlohmann::json& options, const nlohmann::json& step) {
  AdamStep adam;
  adam.learning_rate = step.at("lr");
  adam.beta1 = options.at("beta1");
  adam.beta2 = options.at("beta2");
  adam.epsilon = options.at("eps");
  adam.weight_decay = options.at("weight_decay");
  adam.mode = options.at("mode") == "l2" ? AdamMode::kL2 : AdamMode::kAdamW;
  adam.bias_correction1 = step.at("bias_correction1");
  adam.bias_correction2 = step.at("bias_correction2");
  adam.gradient_scale = step.at("inv_scale").get<float>() * step.at("clip_coef").get<float>();
  return adam;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_KERNELS_GOLDEN_ADAM_H_
