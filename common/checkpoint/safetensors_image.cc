#include "common/checkpoint/safetensors_image.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/rank_file.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace paramshard::checkpoint {

using safetensors::kLengthBytes;

void SafetensorsImage::AddBytes(std::string key, safetensors::Dtype dtype, int64_t count, absl::string_view bytes) {
  if (count == 0) return;
  const auto size_bytes = static_cast<int64_t>(bytes.size());
  PARAMSHARD_CHECK(size_bytes == count * safetensors::DtypeBits(dtype) / 8);
  max_header_bytes_ += MaxEntryBytes(key);
  tensors_.push_back({{std::move(key), dtype, {count}, 0, size_bytes}, std::string(bytes)});
}

std::string SafetensorsImage::Bytes() const {
  std::vector<const Tensor*> order;
  for (const Tensor& tensor : tensors_) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    return safetensors::DtypeBits(a->info.dtype) > safetensors::DtypeBits(b->info.dtype);
  });
  safetensors::Header header;
  std::vector<SavedOffset> offsets;
  std::string data;
  for (const Tensor* const tensor : order) {
    header.tensors.push_back(tensor->info);
    header.tensors.back().offset_bytes = static_cast<int64_t>(data.size());
    offsets.push_back({.key = tensor->info.name, .dimensions = 1});
    data += tensor->bytes;
  }
  header.metadata = FileMetadata(offsets);
  return safetensors::SerializeHeader(header) + data;
}

absl::StatusOr<ParsedImage> ParseImage(absl::string_view bytes) {
  const auto size_bytes = static_cast<int64_t>(bytes.size());
  if (size_bytes < kLengthBytes) {
    return absl::DataLossError(absl::StrCat("want at least ", kLengthBytes, " bytes, got ", size_bytes));
  }
  ParsedImage image;
  ASSIGN_OR_RETURN(image.header_bytes, safetensors::DataBegin(bytes.substr(0, kLengthBytes)));
  if (image.header_bytes > size_bytes) {
    return absl::DataLossError(
        absl::StrCat("want a header of ", image.header_bytes, " bytes, got ", size_bytes, " bytes in all"));
  }
  image.data = bytes.substr(image.header_bytes);
  const absl::string_view json = bytes.substr(kLengthBytes, image.header_bytes - kLengthBytes);
  ASSIGN_OR_RETURN(image.header, safetensors::ParseHeader(json, size_bytes - image.header_bytes));
  return image;
}

}  // namespace paramshard::checkpoint
