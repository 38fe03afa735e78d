// Masters and moments of a shard, where they lie now: values and stored bytes.
#ifndef PARAMSHARD_SERVER_STATE_STATE_ARRAYS_H_
#define PARAMSHARD_SERVER_STATE_STATE_ARRAYS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/state_tensor.h"
#include "server/device/compute_device.h"
#include "server/state/shard_extents.h"
#include "server/state/shard_memory.h"

namespace paramshard::server {

// Callers hold the shard's mutex: shared to read, exclusively to write. Views end with it.
class StateArrays {
 public:
  // Both outlive this. `trainable` is the arithmetic on the trainable extents, which moves their state.
  StateArrays(const ShardMemory& memory, const ShardArithmetic& trainable)
      : memory_(memory), extents_(memory.extents()), trainable_(trainable) {}

  // Returns values in fp32: without a master, its decoded row-wise plane; empty for a moment that the parameter does
  // not have.
  absl::StatusOr<std::vector<float>> Read(const ShardExtent& extent, StateTensor tensor) const {
    return Read(extent, tensor, Whole(extent));
  }
  absl::StatusOr<std::vector<float>> Read(const ShardExtent& extent, StateTensor tensor, const ExtentPart& part) const;
  // Returns the stored bytes: elements, then scales where the type has them; of a master with remainder the upper
  // halves, then the remainders. Empty if the parameter does not have the tensor.
  absl::StatusOr<std::vector<HostView>> Stored(const ShardExtent& extent, StateTensor tensor) const {
    return Stored(extent, tensor, Whole(extent));
  }
  absl::StatusOr<std::vector<HostView>> Stored(const ShardExtent& extent, StateTensor tensor,
                                               const ExtentPart& part) const;
  // Returns one of these arrays, in a form that RowOf() has for the parameter.
  absl::StatusOr<HostView> StoredArray(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                       const ExtentPart& part) const;
  // Copies the same bytes by a queue of the shard's device to `target`, host memory that is open to the device
  // (ComputeDevice::OpenHostMemory). Returns their number.
  absl::StatusOr<int64_t> CopyStored(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                     const ExtentPart& part, DeviceQueue& queue, uint8_t* target) const;
  // Replaces rows with bytes as Stored() gives them.
  absl::Status Write(const ShardExtent& extent, StateTensor tensor, TensorForm form, RowRange rows,
                     absl::Span<const uint8_t> bytes);

 private:
  uint8_t* ArrayOf(const ShardExtent& extent, StateTensor tensor, TensorForm form) const;
  absl::Span<const uint8_t> BytesOf(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                    const ExtentPart& part) const;

  const ShardMemory& memory_;
  const ShardExtents& extents_;
  const ShardArithmetic& trainable_;
};

// Rows of a tensor as they are stored.
struct StoredRows {
  std::vector<uint8_t> elements;
  std::vector<uint8_t> rest;
};

StoredRows EncodeRows(const ParameterSpec& spec, StateTensor tensor, int64_t rows, absl::Span<const float> values);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_STATE_ARRAYS_H_
