// Places of the parts of tensors that are cut over several safetensors files, in the form of
// torch.distributed.checkpoint.
//
// The metadata of such a file has the text DCP_SHARDING_INFO, a JSON object: {"w": {"saved_offsets": [128, 0]}} for a
// part whose first element is at row 128 and column 0 of the whole tensor.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_SHARDING_INFO_H_
#define PARAMSHARD_COMMON_SAFETENSORS_SHARDING_INFO_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "common/safetensors/header.h"

namespace paramshard::safetensors {

inline constexpr char kShardingInfoKey[] = "DCP_SHARDING_INFO";

// An offset for each dimension, by tensor.
using SavedOffsets = absl::btree_map<std::string, std::vector<int64_t>, std::less<>>;

std::string SerializeShardingInfo(const SavedOffsets& offsets);

// Returns the offsets of the tensors of a file with this header, in their order. INVALID_ARGUMENT naming the tensor
// unless the metadata has such a text, which gives each tensor of the file, and no other, an offset 0 <= n <= 2^62 for
// each of its dimensions.
absl::StatusOr<std::vector<std::vector<int64_t>>> ParseShardingInfo(const Header& header);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_SHARDING_INFO_H_
