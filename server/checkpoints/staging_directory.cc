#include "server/checkpoints/staging_directory.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/step_folder.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Bytes of one write. A disk with more to write at once is a little faster.
constexpr int64_t kWriteBytes = int64_t{64} << 20;

}  // namespace

StagingDirectory::StagingDirectory(const Disk& disk, const std::string& model_folder, const SaveIdentity& identity)
    : disk_(disk),
      path_((std::filesystem::path(model_folder) /
             checkpoint::TemporaryFolderName(identity.step, identity.history, identity.save_id))
                .string()) {}

std::string StagingDirectory::PathOf(const std::string& name) const {
  return (std::filesystem::path(path_) / name).string();
}

absl::Status StagingDirectory::WriteRank(const StateImage& image, Progress progress) const {
  int64_t written_bytes = 0;
  for (int i = 0; i < image.file_count(); ++i) {
    const absl::Span<const uint8_t> bytes = image.Bytes(i);
    const auto size_bytes = static_cast<int64_t>(bytes.size());
    ASSIGN_OR_RETURN(Disk::File file, disk_.Create(PathOf(image.file(i).name())));
    RETURN_IF_ERROR(file.Reserve(size_bytes));
    for (int64_t offset = 0; offset < size_bytes; offset += kWriteBytes) {
      RETURN_IF_ERROR(progress(written_bytes));
      RETURN_IF_ERROR(file.WriteAt(offset, bytes.subspan(offset, kWriteBytes)));
      written_bytes += std::min(kWriteBytes, size_bytes - offset);
    }
    RETURN_IF_ERROR(progress(written_bytes));
    RETURN_IF_ERROR(file.Sync());
  }
  return absl::OkStatus();
}

absl::StatusOr<PartReport> StagingDirectory::Finish(int node, absl::Span<const StateImage* const> images) const {
  std::vector<const StateImage*> by_rank(images.begin(), images.end());
  std::sort(by_rank.begin(), by_rank.end(),
            [](const StateImage* a, const StateImage* b) { return a->rank() < b->rank(); });
  checkpoint::Part part{.node = node};
  for (const StateImage* const image : by_rank) RETURN_IF_ERROR(image->AddTo(part));
  const std::string text = checkpoint::SerializePart(part);
  RETURN_IF_ERROR(disk_.WriteFile(PathOf(checkpoint::PartFileName(node)), text));
  RETURN_IF_ERROR(disk_.SyncFolder(path_));
  return PartReport{.node = node, .hash = checkpoint::HashBytes(text)};
}

}  // namespace paramshard::server
