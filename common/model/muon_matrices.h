// The matrices that Muon steps, in the tensors of a model.
#ifndef PARAMSHARD_COMMON_MODEL_MUON_MATRICES_H_
#define PARAMSHARD_COMMON_MODEL_MUON_MATRICES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/model/row_range.h"
#include "kernels/optim/muon.h"

namespace paramshard {

// INVALID_ARGUMENT if a parameter of a Muon group is no matrix and no stack of them, its split_rows do not add up to its
// outputs, or its parts differ in their learning rates.
absl::Status CheckMuonParameter(const ParameterSpec& spec, const ParameterGroup& group);

// Returns the factor of the learning rate for each matrix of a parameter of a Muon group.
double MuonRateFactor(const ParameterSpec& spec, const ParameterGroup& group);

// Returns the matrices of a parameter's rows, which are whole matrices; null if Muon does not step the parameter.
std::optional<MuonMatrices> MuonMatricesOf(const ParameterSpec& spec, const std::vector<ParameterGroup>& groups,
                                           const RowRange& rows);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_MUON_MATRICES_H_
