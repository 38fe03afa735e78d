// Specification of a model: trainers describe it, the daemon checks it, and both use the checked form.
#ifndef PARAMSHARD_COMMON_MODEL_MODEL_SPEC_H_
#define PARAMSHARD_COMMON_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/formats/delayed_scaling.h"
#include "kernels/formats/format_id.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/muon_options.h"
#include "kernels/optim/state_types.h"
#include "kernels/random/initial_values.h"
#include "kernels/reduce/gradient.h"

namespace paramshard {

// One type serves both forms of a spec. A trainer DESCRIBES a model and leaves fields unset to get their defaults. The
// daemon CHECKS the description (ParseModelSpec in model_spec_proto.h) and makes the canonical spec: every parameter
// has its format, every `optional` of EncodingSpec and ParameterSpec that applies is set, rules are resolved, and specs
// with the same meaning are equal. Model::spec(), the layout and the daemon use checked specs only.
//
// Every member of the structs below has a default, so designated initializers need to name only the others.

// Reduction of the ranks' gradients in a step: their mean, or their sum.
enum class GradientReduction : uint8_t { kMean = 1, kSum = 2 };

// Time at which the gradients of a push are summed over the ranks: at the commit, which takes as many bytes on each
// rank as all gradients of the model and does not disturb trainers that compute, or at once. The sums have the same
// bits.
enum class GradientSums : uint8_t { kAtCommit = 1, kAtPush = 2 };

// Ranks on which a parameter's rows lie. Small parameters (small_parameter_bytes) lie whole on one rank with either.
//
// * kCut: rows over all ranks, in granules.
// * kOwned: every matrix whole on one rank. A tensor [E, A, B] is E matrices, which may have different owners; of more
//   dimensions too, the last two are a matrix. Matrices that share a block of scales have one owner. Owners are chosen
//   so that ranks have equal work (2 s^2 l + s^3 for the smaller and the larger side of each matrix) and equal bytes.
enum class Placement : uint8_t { kCut = 1, kOwned = 2 };

// Encoding of a parameter's planes. Together with the master it determines their bytes. Unset fields have the defaults
// of the format.
struct EncodingSpec {
  // Unset: the first of ModelSpec::format_rules that matches the parameter's name decides, and the fields below stay
  // unset. FP32 in a model without rules.
  std::optional<Format> format = {};
  std::optional<ElementType> element = {};                      // E4M3; E2M1 for NVFP4_2D
  std::optional<bool> power_of_two_scales = {};                 // true; false for FP8_TENSOR_CURRENT
  std::optional<DelayedScaling::Options> delayed_scaling = {};  // for FP8_TENSOR_DELAYED
};

// Returns the encoding with the defaults of unset fields; FP32 without a format.
Encoding EncodingOf(const EncodingSpec& spec);

// One tensor of the model.
struct ParameterSpec {
  std::string name = {};  // unique in the model; 1 to 512 bytes of UTF-8
  // 0 to 8 dimensions; seen as a matrix [product of all but the last, last].
  std::vector<int64_t> shape = {};
  EncodingSpec encoding = {};
  GradientType gradient_type = GradientType::kFP32;
  // Types in which the optimizer's first and second moment are stored, whatever it calls them. Unset: the type of the rule that gives the format, else FP32.
  std::optional<MomentType> exp_avg_type = {};
  std::optional<MomentType> exp_avg_sq_type = {};
  std::optional<MasterType> master_type = {};  // kBF16Remainder for parameters of format BF16 only
  int group = 0;                               // index into ModelSpec::groups
  InitialValue initial_value = {};
  Placement placement = Placement::kCut;
  // False: the parameter is frozen. It is gathered, imported and exported; it has no moments, no gradient and no room
  // for one, and commits do not change it. It has a master only if master_type asks for one; else its planes are its
  // only state, and an export gives their decoded values.
  bool trainable = true;
  // Read where Muon steps the parameter. The last two dimensions are a matrix, the others a stack of them.
  bool transposed = false;               // [inputs, outputs], not [outputs, inputs]
  std::vector<int64_t> split_rows = {};  // outputs of the matrices that it is made of, such as those of q, k and v
  // In a checked spec: the optimizer of the group.
  Optimizer optimizer = Optimizer::kAdamW;

  // Size of the matrix; a scalar is 1 x 1. Requires dimensions >= 1 whose product fits, as in a checked spec.
  int64_t rows() const;
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
};

// Parameters that are gathered and pushed together: a layer, or a transformer block.
struct UnitSpec {
  std::string name = {};  // unique among the units
  std::vector<ParameterSpec> parameters = {};
  // False keeps the unit gathered from the forward to the backward pass: it has its own slot, which one gather of
  // Phase::kBoth fills.
  bool reshard_after_forward = true;
};

// Parameters that share hyper-parameters. The group has the fixed options; the numbers come with every commit.
struct ParameterGroup {
  std::string name = {};  // for people; may be empty
  Optimizer optimizer = Optimizer::kAdamW;
  bool bias_correction = true;
  MuonOptions muon = {};  // read where Muon is the optimizer
};

// A rule gives the format and state types of the parameters whose names it matches, unless they name a format
// themselves:
//
//   spec.format_rules = {{.pattern = "*.norm.*", .encoding = {.format = Format::kFP32}},
//                        {.pattern = "*", .encoding = {.format = Format::kMXFP8}, .exp_avg_type = MomentType::kFP8}};
struct FormatRule {
  // A glob for whole names, as fnmatch(3) without flags reads it. A rule that matches no parameter is refused.
  std::string pattern = {};
  EncodingSpec encoding = {};  // with a format
  std::optional<MomentType> exp_avg_type = {};
  std::optional<MomentType> exp_avg_sq_type = {};
  std::optional<MasterType> master_type = {};
};

// Returns the names that the groups' optimizers give to a moment, such as "exp_avg" or "exp_avg+momentum_buffer"; empty if
// none keeps it.
std::string MomentNames(const std::vector<ParameterGroup>& groups, MomentKind kind);

// Returns the type of a moment in a ParameterSpec or a FormatRule. In a checked spec it is unset if the parameter does
// not have the moment.
template <typename Spec>
auto& MomentTypeOf(Spec& spec, MomentKind kind) {
  switch (kind) {
    case MomentKind::kFirst:
      return spec.exp_avg_type;
    case MomentKind::kSecond:
      break;
  }
  return spec.exp_avg_sq_type;
}

// A model; every rank gives the same description. CreateModel and OpenModel reject an invalid one with INVALID_ARGUMENT
// that names the parameter or the field.
struct ModelSpec {
  std::string name = {};  // unique on the daemon; no '/'
  std::vector<UnitSpec> units = {};
  std::vector<ParameterGroup> groups = {};     // empty: one group with defaults
  std::optional<int> shard_size = {};          // default: the devices of one daemon
  int64_t small_parameter_bytes = 256 * 1024;  // smaller planes live whole on one rank
  int gather_slots = 3;                        // prefetch depth + 1; 1 to 64
  // Number of these slots for units that take more than twice the median; as many of these units can be held at a time.
  // 1 to gather_slots. See Model::SlotsOf.
  int large_gather_slots = 1;
  int gradient_slots = 2;  // 1 to 64
  GradientReduction gradient_reduction = GradientReduction::kMean;
  uint64_t seed = 0;
  // Longest time that a rank may keep other ranks waiting inside a step; then the epoch ends. > 0; default: the
  // daemon's.
  std::optional<absl::Duration> step_timeout = {};
  std::vector<FormatRule> format_rules = {};  // the first rule that matches a name applies
  // Default: at the commit if all ranks are GPUs of one daemon with much free memory, else at the push.
  std::optional<GradientSums> gradient_sums = {};
  // Type in which the daemon stores the sums of gradients that wait for a commit. kBF16 halves that memory, but allows
  // one push of a unit between two commits: a trainer adds up its micro-batches in the gradient slot.
  GradientType accumulator_type = GradientType::kFP32;
  // Most pushes of a unit between two commits. With 1, a rank that has the whole model without replicas keeps gradients
  // in the type in which they were pushed: the same values, and half the memory for BF16. Default: any number, or 1 with
  // accumulators of kBF16.
  std::optional<int> pushes_per_step = {};
};

// Returns the largest number of pushes of a unit between two commits; null: any number.
std::optional<int> MostPushesPerStep(const ModelSpec& spec);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_MODEL_SPEC_H_
