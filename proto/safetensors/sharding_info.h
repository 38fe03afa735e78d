// Where the parts of tensors lie that are cut over several safetensors files, as torch.distributed.checkpoint says it.
//
// The metadata of such a file have the text DCP_SHARDING_INFO, a JSON object: {"w": {"saved_offsets": [128, 0]}} for a
// part whose first element is that of row 128 and column 0 of the whole tensor.
#ifndef PARAMSHARD_PROTO_SAFETENSORS_SHARDING_INFO_H_
#define PARAMSHARD_PROTO_SAFETENSORS_SHARDING_INFO_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "proto/safetensors/header.h"

namespace paramshard::safetensors {

inline constexpr char kShardingInfoKey[] = "DCP_SHARDING_INFO";

// By tensor: an offset for each dimension.
using SavedOffsets = absl::btree_map<std::string, std::vector<int64_t>, std::less<>>;

std::string SerializeShardingInfo(const SavedOffsets& offsets);

// Offsets of the tensors of a file with this header, in their order. INVALID_ARGUMENT naming the tensor where the
// metadata have no such text, or do not give each tensor of the file, and no other, an offset 0 <= n <= 2^62 for each of
// its dimensions.
absl::StatusOr<std::vector<std::vector<int64_t>>> ParseShardingInfo(const Header& header);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_PROTO_SAFETENSORS_SHARDING_INFO_H_
