// Chunks in which planes travel, and their hashes.
#ifndef PARAMSHARD_SERVER_MIRRORS_PLANES_CHUNK_H_
#define PARAMSHARD_SERVER_MIRRORS_PLANES_CHUNK_H_

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"
#include "paramshard/v1/mirror.pb.h"

namespace paramshard::server {

inline constexpr int64_t kPlanesChunkBytes = int64_t{1} << 20;

// The message FetchPlanesResponse with `planes`, which both sides leave to no parser: planes are copied once on their way
// to gRPC's socket, and once from there. Its tag is the message's first byte, then come the length and the planes.
inline constexpr uint32_t kPlanesTag = v1::FetchPlanesResponse::kPlanesFieldNumber << 3 | 2;  // 2: has a length

// Returns the message without a copy of the planes. gRPC lets go of `owner` when it needs them no more.
grpc::ByteBuffer PlanesMessage(absl::Span<const uint8_t> planes, std::shared_ptr<const void> owner);
// Copies the planes of a message whose tag has been read. Returns false if they are not exactly `planes.size()` bytes,
// or something follows them.
bool ReadPlanes(google::protobuf::io::CodedInputStream& input, absl::Span<uint8_t> planes);

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
