// Transfer of a rank's state from a replica to the same rank in another daemon.
//
// Nothing says what follows on the way: both sides have the same spec and layout, and go through the same list. Of
// every extent, in the shard's order: where planes are the state, data, scales and amax of each plane; else, part by
// part, elements and rest of master and moments. The last 16 bytes are a hash of all arrays.
#ifndef PARAMSHARD_SERVER_MODELS_REPLICA_TRANSFER_H_
#define PARAMSHARD_SERVER_MODELS_REPLICA_TRANSFER_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/state/shard.h"

namespace paramshard::server {

// Sends the tensors of the shard's state by `send`. Errors of `send`, and what breaks the device.
absl::Status SendTensors(const Shard& shard, absl::FunctionRef<absl::Status(absl::Span<const uint8_t>)> send);

// Writes the tensors that `receive` brings in the place of the shard's, then reads them back and compares with the
// hash. Planes are to be encoded from them. `received` gets how many bytes have come. DATA_LOSS if the hashes differ;
// errors of `receive`, and what breaks the device.
absl::Status ReceiveTensors(Shard& shard, absl::FunctionRef<absl::Status(absl::Span<uint8_t>)> receive,
                            absl::FunctionRef<void(int64_t)> received);

// Returns the bytes of all that ReceiveTensors brings but the hash.
int64_t TensorBytes(const Shard& shard);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_REPLICA_TRANSFER_H_
