#include "client/internal/bound_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard::internal {
namespace {

// Returns true for what every rank has of the whole tensor.
bool IsOfTensor(const Encoding& encoding, BoxContent content) {
  return content == BoxContent::kAmax ||
         (content == BoxContent::kScales && ScaleBlock(encoding, Plane::kRowWise).rows == kUnbounded);
}

absl::Status CheckSame(const ReadParameter& planned, const ReadParameter& present) {
  if (planned.shape == present.shape && planned.encoding == present.encoding) return absl::OkStatus();
  const auto described = [](const ReadParameter& parameter) {
    return absl::StrCat(absl::StrJoin(parameter.shape, " x "), " ", FormatName(parameter.encoding.format));
  };
  return absl::FailedPreconditionError(absl::StrCat("plan: ", planned.name, ": was made for ", described(planned),
                                                    ", and the model has ", described(present), ": make another plan"));
}

}  // namespace

void AppendCopies(const ReaderSession& session, uint64_t generation, int parameter, const Box& box,
                  std::vector<PlannedCopy>& copies) {
  if (*box.columns == 0) return;
  const Encoding& encoding = session.parameters()[parameter].encoding;
  const BoxOutput output = OutputOf(encoding, box.content, *box.rows, *box.columns);
  // The whole box; each plane has a part of it.
  BoxCopy whole{.matrix = {.encoding = encoding},
                .rows = {.begin = box.first_row, .end = box.first_row + *box.rows},
                .first_column = box.first_column,
                .columns = *box.columns,
                .content = box.content,
                .out = static_cast<uint8_t*>(box.out),
                .out_stride = box.out_stride_bytes.value_or(output.row_bytes)};
  if (IsOfTensor(encoding, box.content)) whole.rows.end = std::min(whole.rows.end, whole.rows.begin + 1);
  for (const PlaneRows& plane : session.RowsOf(parameter, generation)) {
    const RowRange rows{.begin = std::max(whole.rows.begin, plane.first_row),
                        .end = std::min(whole.rows.end, plane.first_row + plane.matrix.rows)};
    if (rows.size() <= 0) continue;
    BoxCopy copy = PartOf(whole, rows);
    copy.matrix = plane.matrix;
    copy.matrix_row = plane.first_row;
    copy.rows = {.begin = rows.begin - plane.first_row, .end = rows.end - plane.first_row};
    copies.push_back({.box = &box, .copy = copy});
  }
}

absl::StatusOr<BoundPlan::Copies> BoundPlan::CopiesIn(const std::shared_ptr<const ReaderSession>& session,
                                                      uint64_t generation) const {
  const absl::MutexLock lock(&mu_);
  if (session_.lock() != session) {
    session_ = session;
    copies_.assign(session->copies(), nullptr);
  }
  Copies& kept = copies_[generation % copies_.size()];
  if (kept != nullptr) return kept;
  auto copies = std::make_shared<std::vector<PlannedCopy>>();
  for (size_t i = 0; i < boxes_.size(); ++i) {
    ASSIGN_OR_RETURN(const int parameter, session->Find(boxes_[i].parameter));
    RETURN_IF_ERROR(CheckSame(parameters_[i], session->parameters()[parameter]));
    AppendCopies(*session, generation, parameter, boxes_[i], *copies);
  }
  // One launch of a GPU makes copies that are alike.
  const auto kind = [](const PlannedCopy& each) {
    return std::pair(each.copy.matrix.encoding.format, each.copy.content);
  };
  if (gpu_ >= 0) {
    std::stable_sort(copies->begin(), copies->end(),
                     [&](const PlannedCopy& a, const PlannedCopy& b) { return kind(a) < kind(b); });
  }
  kept = std::move(copies);
  return kept;
}

}  // namespace paramshard::internal
