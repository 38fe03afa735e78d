// Rows of a checkpoint's tensors as numbers.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_SAVED_VALUES_H_
#define PARAMSHARD_COMMON_CHECKPOINT_SAVED_VALUES_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/model_spec.h"
#include "common/model/name_index.h"
#include "common/model/row_range.h"
#include "common/model/state_tensor.h"

namespace paramshard::checkpoint {

// Returns the array that has an element for each of a tensor's values. For a master that was not saved it is the
// row-wise plane.
ArrayKind ElementsOf(const ParameterSpec& saved, StateTensor tensor);

// Reads rows of a saved tensor and gives them to `sink` decoded to fp32, in order, at most the rows of one chunk at a
// time. Remainders and scales of all the rows are held in memory. Without a master, kMaster decodes the row-wise plane.
// The first error of `sink` ends it; errors of Reader::ReadRows. Requires a tensor that was saved.
using ValueSink = absl::FunctionRef<absl::Status(const RowRange& rows, absl::Span<const float> values)>;
absl::Status ReadValues(const Reader& reader, const ParameterPlace& place, StateTensor tensor, const RowRange& rows,
                        ValueSink sink);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_SAVED_VALUES_H_
