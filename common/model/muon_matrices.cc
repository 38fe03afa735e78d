#include "common/model/muon_matrices.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/optim/muon_math.h"
#include "kernels/optim/optimizers.h"

namespace paramshard {
namespace {

// Rows that a matrix has as it is stored.
int64_t MatrixRows(const ParameterSpec& spec) { return spec.shape[spec.shape.size() - 2]; }
int64_t Outputs(const ParameterSpec& spec) { return spec.transposed ? spec.columns() : MatrixRows(spec); }
int64_t Inputs(const ParameterSpec& spec) { return spec.transposed ? MatrixRows(spec) : spec.columns(); }

// Outputs of each part of a matrix.
std::vector<int64_t> PartsOf(const ParameterSpec& spec) {
  return spec.split_rows.empty() ? std::vector<int64_t>{Outputs(spec)} : spec.split_rows;
}

}  // namespace

absl::Status CheckMuonParameter(const ParameterSpec& spec, const ParameterGroup& group) {
  if (spec.shape.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat("Muon: want a matrix or a stack of matrices, got shape [",
                                                   absl::StrJoin(spec.shape, ", "),
                                                   "]; put it into a group of another optimizer"));
  }
  const std::vector<int64_t> parts = PartsOf(spec);
  int64_t left = Outputs(spec);
  for (const int64_t part : parts) {
    if (part < 1 || part > left) {
      left = -1;
      break;
    }
    left -= part;
  }
  if (left != 0) {
    return absl::InvalidArgumentError(absl::StrCat("split_rows: want sizes from 1 that add up to ", Outputs(spec),
                                                   " outputs, got [", absl::StrJoin(spec.split_rows, ", "), "]"));
  }
  for (const int64_t part : parts) {
    const MuonRate rate = group.muon.rate;
    if (RateFactor(rate, part, Inputs(spec)) == RateFactor(rate, parts.front(), Inputs(spec))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("split_rows: want parts with one learning rate, got [", absl::StrJoin(spec.split_rows, ", "),
                     "]; choose another adjustment of the learning rate, or make the parts parameters of their own"));
  }
  return absl::OkStatus();
}

double MuonRateFactor(const ParameterSpec& spec, const ParameterGroup& group) {
  return RateFactor(group.muon.rate, PartsOf(spec).front(), Inputs(spec));
}

std::optional<MuonMatrices> MuonMatricesOf(const ParameterSpec& spec, const std::vector<ParameterGroup>& groups,
                                           const RowRange& rows) {
  if (!spec.trainable || !IsMuon(spec.optimizer)) return std::nullopt;
  MuonMatrices matrices = {.parts = {}, .steps = groups[spec.group].muon.steps};
  for (int64_t row = 0; row < rows.size(); row += MatrixRows(spec)) {
    MuonMatrices::Part part = {row, 0, MatrixRows(spec), spec.columns()};
    for (const int64_t outputs : PartsOf(spec)) {
      (spec.transposed ? part.columns : part.rows) = outputs;
      matrices.parts.push_back(part);
      (spec.transposed ? part.column : part.row) += outputs;
    }
  }
  return matrices;
}

}  // namespace paramshard
