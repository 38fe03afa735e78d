// State of a model in a checkpoint besides its parameters' tensors: numbers, the last answer, step counts, and the book
// of amaxes. Node 0 writes it to common.safetensors. Where the header would be longer than readers accept, the rest of
// the tensors goes to further files: common-1.safetensors and on.
//
// | key                     | tensor                                                                                 |
// | ----------------------- | -------------------------------------------------------------------------------------- |
// | numbers                 | I64 [3]: commit number, version, skipped commits                                       |
// | last_answer             | I64 [2]: 1 if it was skipped, else 0; non-finite elements. Missing where it is unknown |
// | last_answer.norm        | F64 [1]: the gradient norm. Together with last_answer                                  |
// | step_counts             | I64 [P]: optimizer steps of every parameter, in the model's order                      |
// | book.amax               | F32 [N]: of every parameter that NeedsAmax(), in the model's order                     |
// | book.scale              | F32 [N]: what the present planes were encoded with                                     |
// | book.is_fresh           | U8 [N]: 1 until a step has entered the history                                         |
// | book.next_scale/NAME    | F32 [1]: of a delayed scaling that has begun                                           |
// | book.history/NAME       | F32 [history_length]: its amaxes, the newest first                                     |
//
// Lists without elements are left out.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_COMMON_STATE_H_
#define PARAMSHARD_COMMON_CHECKPOINT_COMMON_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/rank_file.h"
#include "common/model/model_spec.h"

namespace paramshard::checkpoint {

// An entry of the scaling book between two commits: all offers are settled then and are not part of it. A ScalingBook
// made from these entries continues exactly like the original.
struct BookEntry {
  struct Delayed {
    float next_scale = 1.0f;     // DelayedScaling::scale()
    std::vector<float> history;  // DelayedScaling::history()
    friend bool operator==(const Delayed&, const Delayed&) = default;
  };

  int unit = 0;
  int parameter = 0;  // within the unit
  float amax = 0.0f;
  float scale = 1.0f;  // of the present planes
  bool is_fresh = true;
  std::optional<Delayed> delayed = {};  // unset before the first settlement, and for other formats

  friend bool operator==(const BookEntry&, const BookEntry&) = default;
};

inline constexpr char kCommonFileName[] = "common.safetensors";
// "common.safetensors", "common-1.safetensors", ...
std::string CommonFileName(int index);
bool IsCommonFileName(absl::string_view name);

struct CommonState {
  struct Answer {
    bool skipped = false;
    double gradient_norm = 0;
    int64_t non_finite_count = 0;
    friend bool operator==(const Answer&, const Answer&) = default;
  };

  int64_t commit_number = 0;
  int64_t version = 0;
  int64_t skipped = 0;
  std::optional<Answer> last_answer = {};  // of commit_number; unset where it is unknown
  std::vector<int64_t> step_counts = {};   // one for every parameter, units in order
  std::vector<BookEntry> book = {};        // one for every parameter that NeedsAmax(), units in order

  friend bool operator==(const CommonState&, const CommonState&) = default;
};

// Returns the bytes of the files, by index. INVALID_ARGUMENT for a state that does not fit `spec`: a different number
// of step counts or entries, or a history of a different length.
absl::StatusOr<std::vector<std::string>> SerializeCommonState(const ModelSpec& spec, const CommonState& state,
                                                              int64_t max_header_bytes = RankFilePlan::kMaxHeaderBytes);

// Parses what SerializeCommonState wrote. INVALID_ARGUMENT naming the tensor for bytes that no state of the model has,
// also for numbers below 0 or that contradict each other. DATA_LOSS for a file that ends too early.
absl::StatusOr<CommonState> ParseCommonState(const ModelSpec& spec, absl::Span<const std::string> files);

// Returns the largest size of a file of the model's common state.
int64_t MaxCommonStateBytes(const ModelSpec& spec);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_COMMON_STATE_H_
