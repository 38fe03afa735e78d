// What defines a model, checked: the domain's form of the proto ModelSpec.
#ifndef PARAMSHARD_SERVER_LAYOUT_MODEL_SPEC_H_
#define PARAMSHARD_SERVER_LAYOUT_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/formats/delayed_scaling.h"
#include "kernels/formats/format.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/moment.h"
#include "kernels/random/initial_values.h"
#include "kernels/reduce/gradient_sum.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/layout/names.h"

namespace paramshard::server {

inline constexpr int64_t kMaxElements = int64_t{1} << 40;
inline constexpr int64_t kMaxParameters = 1'000'000;
// A commit carries hyper-parameters of every group, and must fit a record of the command ring.
inline constexpr int kMaxGroups = 1024;
// Ranks that a model can be cut over; with it the sizes of every checked spec's layout fit int64.
inline constexpr int kMaxShardSize = 4096;
inline constexpr int kMaxFormatRules = 256;
// A trainer that hangs holds the others up for so long at most.
inline constexpr absl::Duration kMaxStepTimeout = absl::Hours(24);
inline constexpr size_t kMaxClientStateBytes = 64 * 1024;

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t rows = 1;     // product of all dimensions but the last
  int64_t columns = 1;  // the last dimension; a scalar is 1 x 1
  Encoding encoding;
  DelayedScaling::Options delayed_scaling;  // the defaults but for FP8_TENSOR_DELAYED
  GradientType gradient_type = GradientType::kFP32;
  MomentType exp_avg_type = MomentType::kFP32;
  MomentType exp_avg_sq_type = MomentType::kFP32;
  MasterType master_type = MasterType::kFP32;  // kBF16Remainder for BF16 only
  int group = 0;
  InitialValue initial_value;
};

struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  bool reshard_after_forward = true;
};

struct ParameterGroup {
  std::string name;
  AdamMode mode = AdamMode::kAdamW;
  bool bias_correction = true;
};

// When gradients are summed over the ranks: see the proto.
enum class GradientSums : uint8_t { kAtCommit = 1, kAtPush = 2 };

struct ModelSpec {
  std::string name;
  std::vector<UnitSpec> units;
  std::vector<ParameterGroup> groups;
  std::optional<int> shard_size;
  int64_t small_parameter_bytes = 256 * 1024;
  int gather_slots = 3;
  int large_gather_slots = 1;
  int gradient_slots = 2;
  bool mean_gradients = true;
  uint64_t seed = 0;
  std::optional<absl::Duration> step_timeout;
  std::optional<GradientSums> gradient_sums;
};

// Checks every rule that the proto states, and that the sizes of any layout of the spec fit int64.
// INVALID_ARGUMENT names the parameter (or field), what was expected and what came: "create model
// m: parameter w: expected ..., got ...". Specs that mean the same come out equal: fields that a
// format does not read get their defaults, and rules have given every parameter its format.
absl::StatusOr<ModelSpec> ParseModelSpec(const v1::ModelSpec& proto);

// The same spec with every default written out: equal specs give equal bytes. Inverse of
// ParseModelSpec. shard_size and step_timeout, whose defaults are the daemon's, stay unset where
// they are.
v1::ModelSpec ModelSpecToProto(const ModelSpec& spec);

// XXH3-64 of the deterministic serialization of ModelSpecToProto(spec).
uint64_t ModelSpecFingerprint(const ModelSpec& spec);

// Says where two specs of one name first differ, for people: "parameter blocks.0.w1: shape [4, 4]
// expected, got [4, 8]". Empty when they are equal.
std::string FirstDifference(const ModelSpec& expected, const ModelSpec& got);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LAYOUT_MODEL_SPEC_H_
