// Chunks in which planes travel, and their hashes.
#ifndef PARAMSHARD_SERVER_MIRRORS_PLANES_CHUNK_H_
#define PARAMSHARD_SERVER_MIRRORS_PLANES_CHUNK_H_

#include <cstdint>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

namespace paramshard::server {

inline constexpr int64_t kPlanesChunkBytes = int64_t{1} << 20;

// Hash of a rank's planes (FetchPlanesResponse.RankDigest), of chunks in any order.
class PlanesHash {
 public:
  // `chunk` begins at `offset`, a multiple of kPlanesChunkBytes.
  void Add(int64_t offset, absl::Span<const uint8_t> chunk);
  // Returns 16 bytes, the highest first.
  std::string digest() const;

 private:
  absl::uint128 sum_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_PLANES_CHUNK_H_
