#include "server/mirrors/planes_chunk.h"

#include <utility>

#include "common/checkpoint/content_hash.h"

namespace paramshard::server {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

grpc::ByteBuffer PlanesMessage(absl::Span<const uint8_t> planes, std::shared_ptr<const void> owner) {
  uint8_t header[16];
  uint8_t* end = CodedOutputStream::WriteTagToArray(kPlanesTag, header);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(planes.size()), end);
  using Owner = std::shared_ptr<const void>;
  const grpc::Slice slices[] = {
      grpc::Slice(header, end - header),
      grpc::Slice(
          const_cast<uint8_t*>(planes.data()), planes.size(), [](void* owner) { delete static_cast<Owner*>(owner); },
          new Owner(std::move(owner)))};
  return grpc::ByteBuffer(slices, std::size(slices));
}

bool ReadPlanes(CodedInputStream& input, absl::Span<uint8_t> planes) {
  uint32_t bytes = 0;
  return input.ReadVarint32(&bytes) && bytes == planes.size() &&
         input.ReadRaw(planes.data(), static_cast<int>(bytes)) && input.ReadTag() == 0 && input.ConsumedEntireMessage();
}

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
