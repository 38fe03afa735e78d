// Matrices of parameters with Placement::kOwned, each of which lies whole on one rank.
#ifndef PARAMSHARD_COMMON_MODEL_OWNED_MATRICES_H_
#define PARAMSHARD_COMMON_MODEL_OWNED_MATRICES_H_

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/model/model_spec.h"
#include "kernels/formats/format.h"

namespace paramshard {

// The matrices of a parameter: its last two dimensions, as often as the other dimensions say. A parameter of fewer
// dimensions is one matrix.
struct MatrixStack {
  int64_t count = 1;
  int64_t rows = 1;  // of each matrix
  int64_t columns = 1;
};

inline MatrixStack OwnedMatrices(const ParameterSpec& spec) {
  const int64_t rows = spec.shape.size() > 2 ? spec.shape[spec.shape.size() - 2] : spec.rows();
  return {.count = spec.rows() / rows, .rows = rows, .columns = spec.columns()};
}

// Returns the rows of the parameter that have one owner: whole matrices, and as many of them as share blocks of scales.
// Not more than all rows.
inline int64_t RowsOfOneOwner(const ParameterSpec& spec) {
  const int64_t granule = GranuleRows(EncodingOf(spec.encoding).format);
  return std::min(std::lcm(OwnedMatrices(spec).rows, granule), spec.rows());
}

// Returns the work of an optimizer that multiplies matrices (Muon): 2 s^2 l + s^3 for each with the smaller side s and the
// larger side l.
inline int64_t WorkOfMatrix(int64_t rows, int64_t columns) {
  const auto [s, l] = std::minmax(rows, columns);
  return s * (2 * s * l + s * s);
}

// Returns the work for rows of a parameter, which are whole matrices; 0 if it is frozen. Fits int64 for the rows of any
// checked spec.
inline int64_t WorkOfRows(const ParameterSpec& spec, int64_t rows) {
  if (!spec.trainable) return 0;
  const MatrixStack stack = OwnedMatrices(spec);
  const int64_t inputs = spec.transposed ? stack.rows : stack.columns;
  int64_t work = spec.split_rows.empty() ? WorkOfMatrix(stack.rows, stack.columns) : 0;
  for (const int64_t outputs : spec.split_rows) work += WorkOfMatrix(outputs, inputs);
  return rows / stack.rows * work;
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_OWNED_MATRICES_H_
