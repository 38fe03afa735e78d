#include "server/mirrors/planes_chunk.h"

#include "common/checkpoint/content_hash.h"

namespace paramshard::server {

void PlanesHash::Add(int64_t offset, absl::Span<const uint8_t> chunk) {
  sum_ += checkpoint::HashRows(offset / kPlanesChunkBytes, static_cast<int64_t>(chunk.size()), chunk).sum;
}

std::string PlanesHash::digest() const {
  std::string bytes(sizeof(sum_), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(absl::Uint128Low64(sum_ >> static_cast<int>(8 * (bytes.size() - 1 - i))) & 0xff);
  }
  return bytes;
}

}  // namespace paramshard::server
