#include "common/checkpoint/rank_image.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/checkpoint/chunks.h"
#include "common/checkpoint/tensor_key.h"
#include "kernels/base/check.h"

namespace paramshard::checkpoint {
namespace {

using Bytes = absl::Span<const uint8_t>;

const ParameterSpec& SpecOf(const ModelSpec& spec, const PlannedTensor& tensor) {
  return spec.units[tensor.unit].parameters[tensor.parameter];
}

bool IsJoined(const ModelSpec& spec, const PlannedTensor& tensor) {
  return tensor.kind == ArrayKind::kMaster && SpecOf(spec, tensor).master_type == MasterType::kBF16Remainder;
}

Bytes BytesOf(const RowRun& run, Bytes image) { return image.subspan(run.offset_bytes, run.size_bytes()); }

// Places of remainders, which may be in a different file than their masters.
std::map<std::string, Bytes> RemaindersIn(const ModelSpec& spec, const RankFilePlan& plan,
                                          absl::Span<const Bytes> images) {
  std::map<std::string, Bytes> remainders;
  for (size_t i = 0; i < plan.files().size(); ++i) {
    for (const PlannedTensor& tensor : plan.files()[i].tensors()) {
      if (tensor.kind != ArrayKind::kRemainder) continue;
      remainders[TensorKey(SpecOf(spec, tensor), ArrayKind::kMaster)] = BytesOf(tensor.run, images[i]);
    }
  }
  return remainders;
}

}  // namespace

FileEntry EntryOf(const PlannedFile& file, Bytes image, int64_t client_state_bytes,
                  std::vector<absl::uint128> chunk_sums) {
  PARAMSHARD_CHECK(static_cast<int64_t>(image.size()) == file.size_bytes(client_state_bytes));
  if (chunk_sums.empty()) {
    for (const RowRun& chunk : file.Chunks(client_state_bytes)) {
      chunk_sums.push_back(ChunkSum(chunk, BytesOf(chunk, image)));
    }
  }
  const absl::string_view header(reinterpret_cast<const char*>(image.data()), file.header_bytes());
  return {.name = file.name(),
          .size_bytes = static_cast<int64_t>(image.size()),
          .header_bytes = file.header_bytes(),
          .header_hash = HashBytes(header),
          .chunk_bytes = file.chunk_bytes(),
          .chunk_sums = std::move(chunk_sums)};
}

void AddContentHashes(const ModelSpec& spec, const RankFilePlan& plan, absl::Span<const Bytes> images,
                      absl::Span<const FileEntry> entries, ContentHashes& tensors) {
  PARAMSHARD_CHECK(images.size() == plan.files().size() && entries.size() == plan.files().size());
  const std::map<std::string, Bytes> remainders = RemaindersIn(spec, plan, images);
  for (size_t i = 0; i < entries.size(); ++i) {
    size_t chunk = 0;
    for (const PlannedTensor& tensor : plan.files()[i].tensors()) {
      ContentHash hash{.rows = tensor.run.rows};
      for (const size_t end = chunk + ChunkCount(tensor.run); chunk < end; ++chunk) {
        hash.sum += entries[i].chunk_sums[chunk];
      }
      if (!HasContentHash(tensor.kind)) continue;
      if (IsJoined(spec, tensor)) {
        hash = HashJoinedRows(tensor.run.first_row, tensor.columns, BytesOf(tensor.run, images[i]),
                              remainders.at(tensor.key));
      }
      tensors[tensor.key] += hash;
    }
  }
}

}  // namespace paramshard::checkpoint
