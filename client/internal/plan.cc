// Plan: a public class on top of internal::BoundPlan.
#include "client/plan.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/internal/bound_plan.h"
#include "client/internal/box_copy.h"
#include "client/internal/reader_session.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard {
namespace {

using internal::OutputOf;

absl::string_view NameOf(BoxContent content) {
  switch (content) {
    case BoxContent::kCodes:
      return "codes";
    case BoxContent::kScales:
      return "scales";
    case BoxContent::kAmax:
      return "an amax";
    case BoxContent::kFloat32:
    case BoxContent::kBFloat16:
    case BoxContent::kFloat16:
      break;
  }
  return "values";
}

std::string Range(int64_t first, int64_t count) { return absl::StrCat("[", first, ", ", first + count, ")"); }

std::string Described(const Box& box) {
  return absl::StrCat(box.parameter, ", rows ", Range(box.first_row, *box.rows), " and columns ",
                      Range(box.first_column, *box.columns));
}

// Sets what is unset.
absl::Status CheckRange(const Box& box, absl::string_view what, int64_t size, int64_t first,
                        std::optional<int64_t>& count) {
  if (!count.has_value()) count = size - first;
  if (first >= 0 && *count >= 0 && first <= size && *count <= size - first) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("plan: ", box.parameter, ": want ", what, " within ", Range(0, size),
                                                 ", got ", *count, " from ", first, " on"));
}

absl::Status CheckBlocks(const ReadParameter& parameter, const Box& box) {
  if (box.content == BoxContent::kAmax) return absl::OkStatus();
  const MatrixShape block = ScaleBlock(parameter.encoding, Plane::kRowWise);
  // A scale of the whole tensor goes with every part of it.
  if (block.rows == kUnbounded) return absl::OkStatus();
  const auto cuts = [](int64_t first, int64_t count, int64_t size, int64_t length) {
    return first % length != 0 || ((first + count) % length != 0 && first + count != size);
  };
  if (!cuts(box.first_row, *box.rows, parameter.rows, block.rows) &&
      !cuts(box.first_column, *box.columns, parameter.columns, block.cols)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("plan: ", Described(box), ": ", NameOf(box.content),
                                                 " cut a scale block of ", block.rows, " x ", block.cols,
                                                 ": want whole blocks, or decoded values"));
}

// Sets rows and columns that are unset.
absl::Status CheckBox(const ReadParameter& parameter, Box& box) {
  RETURN_IF_ERROR(CheckRange(box, "rows", parameter.rows, box.first_row, box.rows));
  RETURN_IF_ERROR(CheckRange(box, "columns", parameter.columns, box.first_column, box.columns));
  if (IsDecoded(box.content)) return absl::OkStatus();
  if (OutputOf(parameter.encoding, box.content, 1, 1).row_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("plan: ", box.parameter, ": ", FormatName(parameter.encoding.format),
                                                   " has no ", box.content == BoxContent::kAmax ? "amax" : "scales"));
  }
  return CheckBlocks(parameter, box);
}

absl::Status CheckGpu(const ReadParameter& parameter, const Box& box) {
  if (box.content != BoxContent::kFloat16 || parameter.encoding.format == Format::kFP16) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("plan: ", box.parameter, ": float16 values in memory of a GPU: want float32 or bfloat16"));
}

absl::Status CheckMemory(const Box& box, const BoxOutput& output) {
  if (output.rows == 0 || output.row_bytes == 0) return absl::OkStatus();
  const int64_t stride = box.out_stride_bytes.value_or(output.row_bytes);
  const auto refused = [&](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat("plan: ", Described(box), ": ", text...));
  };
  if (box.out == nullptr) return refused("want memory to write to, got a null pointer");
  if (output.rows > 1 && stride < output.row_bytes) {
    return refused("want a stride of at least ", output.row_bytes, " bytes, got ", stride);
  }
  if (!IsDecoded(box.content) || (reinterpret_cast<uintptr_t>(box.out) % output.element_bytes == 0 &&
                                  (output.rows == 1 || stride % output.element_bytes == 0))) {
    return absl::OkStatus();
  }
  return refused("want memory aligned to ", output.element_bytes, " bytes");
}

// Memory that a box writes.
struct Written {
  const Box* box = nullptr;
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

bool Ascends(const Written& a, const Written& b) { return a.begin < b.begin; }

void AppendRows(const Box& box, const BoxOutput& output, std::vector<Written>& rows) {
  for (int64_t row = 0; row < output.rows; ++row) {
    const auto begin = reinterpret_cast<uintptr_t>(box.out) + row * box.out_stride_bytes.value_or(output.row_bytes);
    rows.push_back({.box = &box, .begin = begin, .end = begin + output.row_bytes});
  }
}

absl::Status CheckOverlap(std::vector<Written> written) {
  std::sort(written.begin(), written.end(), &Ascends);
  for (size_t i = 1; i < written.size(); ++i) {
    if (written[i].begin >= written[i - 1].end) continue;
    const auto [first, second] = std::minmax(written[i - 1].box, written[i].box);
    return absl::InvalidArgumentError(
        absl::StrCat("plan: the memory of ", Described(*first), " and of ", Described(*second), " overlaps"));
  }
  return absl::OkStatus();
}

// Boxes from the first byte to the last do not overlap as a rule. Rows of those that do may lie beside each other.
absl::Status CheckOverlap(const std::vector<Box>& boxes, const std::vector<BoxOutput>& outputs) {
  std::vector<Written> written;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const BoxOutput& output = outputs[i];
    if (output.rows == 0 || output.row_bytes == 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(boxes[i].out);
    const int64_t stride = boxes[i].out_stride_bytes.value_or(output.row_bytes);
    written.push_back({.box = &boxes[i], .begin = begin, .end = begin + (output.rows - 1) * stride + output.row_bytes});
  }
  std::sort(written.begin(), written.end(), &Ascends);
  for (size_t first = 0; first < written.size();) {
    size_t next = first + 1;
    for (uintptr_t end = written[first].end; next < written.size() && written[next].begin < end; ++next) {
      end = std::max(end, written[next].end);
    }
    if (next - first > 1) {
      std::vector<Written> rows;
      for (size_t i = first; i < next; ++i) AppendRows(*written[i].box, outputs[written[i].box - boxes.data()], rows);
      RETURN_IF_ERROR(CheckOverlap(std::move(rows)));
    }
    first = next;
  }
  return absl::OkStatus();
}

// Boxes with rows and columns, what each writes, and the parameter of each.
struct Checked {
  std::vector<Box> boxes;
  std::vector<BoxOutput> outputs;
  std::vector<ReadParameter> parameters;
};

absl::StatusOr<Checked> Check(absl::Span<const ReadParameter> parameters, std::vector<Box> boxes) {
  absl::flat_hash_map<absl::string_view, const ReadParameter*> by_name;
  for (const ReadParameter& parameter : parameters) by_name.emplace(parameter.name, &parameter);
  Checked checked{.boxes = std::move(boxes), .outputs = {}, .parameters = {}};
  for (Box& box : checked.boxes) {
    const auto found = by_name.find(box.parameter);
    if (found == by_name.end()) {
      const absl::Status missing = internal::ParameterNotFound("the model", parameters, box.parameter);
      return absl::NotFoundError(absl::StrCat("plan: ", missing.message()));
    }
    const ReadParameter& parameter = *found->second;
    RETURN_IF_ERROR(CheckBox(parameter, box));
    checked.outputs.push_back(OutputOf(parameter.encoding, box.content, *box.rows, *box.columns));
    checked.parameters.push_back(parameter);
  }
  return checked;
}

}  // namespace

absl::StatusOr<Plan> Plan::Create(absl::Span<const ReadParameter> parameters, std::vector<Box> boxes, int gpu) {
  ASSIGN_OR_RETURN(Checked checked, Check(parameters, std::move(boxes)));
  for (size_t i = 0; i < checked.boxes.size(); ++i) {
    RETURN_IF_ERROR(CheckMemory(checked.boxes[i], checked.outputs[i]));
    if (gpu >= 0) RETURN_IF_ERROR(CheckGpu(checked.parameters[i], checked.boxes[i]));
  }
  RETURN_IF_ERROR(CheckOverlap(checked.boxes, checked.outputs));
  return Plan(std::make_unique<internal::BoundPlan>(std::move(checked.boxes), std::move(checked.parameters), gpu));
}

absl::StatusOr<std::vector<BoxOutput>> Plan::OutputsOf(absl::Span<const ReadParameter> parameters,
                                                       absl::Span<const Box> boxes) {
  ASSIGN_OR_RETURN(Checked checked, Check(parameters, {boxes.begin(), boxes.end()}));
  return std::move(checked.outputs);
}

Plan::Plan(std::unique_ptr<internal::BoundPlan> bound) : bound_(std::move(bound)) {}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

const std::vector<Box>& Plan::boxes() const { return bound_->boxes(); }
int Plan::gpu() const { return bound_->gpu(); }

}  // namespace paramshard
