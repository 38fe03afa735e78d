// CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum of tensor chunks. Debian 12 packages no library for it.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_CRC32C_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace paramshard::wire {

// Returns the CRC-32C of the data: 0xe3069283 for "123456789".
uint32_t Crc32c(absl::string_view data);

// Returns the checksum of a longer text: `crc` is the checksum of its beginning, and `data`, or a number's 4
// little-endian bytes, follows.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data);
uint32_t ExtendCrc32c(uint32_t crc, uint32_t number);

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_CRC32C_H_
