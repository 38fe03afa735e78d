// Rows of a checkpoint's tensors as numbers.
#ifndef PARAMSHARD_PROTO_CHECKPOINT_SAVED_VALUES_H_
#define PARAMSHARD_PROTO_CHECKPOINT_SAVED_VALUES_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/checkpoint/reader.h"
#include "proto/checkpoint/tensor_key.h"
#include "proto/model/model_spec.h"
#include "proto/model/name_index.h"
#include "proto/model/row_range.h"
#include "proto/model/state_tensor.h"

namespace paramshard::checkpoint {

// The array that has an element for each of a tensor's values. That of a master which was not saved is the row-wise
// plane.
ArrayKind ElementsOf(const ParameterSpec& saved, StateTensor tensor);

// Reads rows of a saved tensor and gives them to `sink` decoded to fp32, in order, those of a chunk at most at a time.
// What elements cannot be read without (remainders, scales) is held for all of the rows. Without a master, kMaster is
// what the row-wise plane decodes to. The first error of `sink` ends it; errors of Reader::ReadRows. Requires a tensor
// that was saved.
using ValueSink = absl::FunctionRef<absl::Status(const RowRange& rows, absl::Span<const float> values)>;
absl::Status ReadValues(const Reader& reader, const ParameterPlace& place, StateTensor tensor, const RowRange& rows,
                        ValueSink sink);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_PROTO_CHECKPOINT_SAVED_VALUES_H_
