// Plans: which parts of a model's parameters go where in a reader's memory. Checked once, copied from any version.
//
//   ASSIGN_OR_RETURN(const Plan plan, Plan::Create(snapshot.parameters(), {
//       {.parameter = "layers.0.k.weight", .content = BoxContent::kBFloat16, .out = keys},
//       {.parameter = "layers.0.o.weight", .first_column = 512, .columns = 512, .out = half_of_the_output}}));
//   RETURN_IF_ERROR(snapshot.CopyTo(plan));  // of this snapshot, and of later ones
#ifndef PARAMSHARD_CLIENT_PLAN_H_
#define PARAMSHARD_CLIENT_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/reader.h"

namespace paramshard {

namespace internal {
class BoundPlan;
}  // namespace internal

// Decoded values are float32 as docs/reference/numerics.md defines them, rounded to the nearest even value of the type.
// The others are bytes of the row-wise plane as stored. NVFP4_2D alone has an amax.
enum class BoxContent : uint8_t { kFloat32, kBFloat16, kFloat16, kCodes, kScales, kAmax };

constexpr bool IsDecoded(BoxContent content) { return content <= BoxContent::kFloat16; }

// Rows and columns of a parameter, in elements whatever the content, and the memory that they go to.
struct Box {
  std::string parameter = {};
  int64_t first_row = 0;
  std::optional<int64_t> rows = {};  // unset: to the last
  int64_t first_column = 0;
  std::optional<int64_t> columns = {};  // unset: to the last
  BoxContent content = BoxContent::kFloat32;
  void* out = nullptr;
  std::optional<int64_t> out_stride_bytes = {};  // from a row of `out` to the next; unset: rows are neighbours
};

// Rows of bytes that a box writes: rows of values or codes; of scales, one row for each row of blocks.
struct BoxOutput {
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t element_bytes = 1;
};

// A list of boxes. Immutable, thread-safe. It outlives snapshots and restarts of the daemon; memory of its boxes has to
// outlive it.
class Plan {
 public:
  // `parameters` as Snapshot::parameters, of any snapshot of the model. NOT_FOUND with similar names; INVALID_ARGUMENT
  // for rows and columns that the parameter does not have, codes and scales of a part of a block, scales and amax that
  // the format does not have, and memory that is null, not aligned to its elements, or written by two boxes. All memory
  // is the host's, or of this process's GPU `gpu`. UNIMPLEMENTED float16 values on a GPU that the plane has otherwise.
  static absl::StatusOr<Plan> Create(absl::Span<const ReadParameter> parameters, std::vector<Box> boxes, int gpu = -1);
  // Returns the memory that each box needs. Errors of Create, without a look at memory.
  static absl::StatusOr<std::vector<BoxOutput>> OutputsOf(absl::Span<const ReadParameter> parameters,
                                                          absl::Span<const Box> boxes);
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;
  ~Plan();

  // Returns what was given, with rows and columns set.
  const std::vector<Box>& boxes() const;
  int gpu() const;

 private:
  friend class Snapshot;
  explicit Plan(std::unique_ptr<internal::BoundPlan> bound);
  std::unique_ptr<internal::BoundPlan> bound_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_CLIENT_PLAN_H_
