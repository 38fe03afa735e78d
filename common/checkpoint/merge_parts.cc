// Merges the parts that daemons report into a manifest.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors_image.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/names.h"
#include "common/safetensors/header.h"
#include "kernels/base/status_macros.h"

namespace paramshard::checkpoint {
namespace {

using safetensors::NameText;

absl::Status Invalid(absl::string_view object, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("merge parts: ", object, ": ", message));
}

absl::Status CheckTensors(const ModelSpec& spec, const ContentHashes& tensors) {
  size_t expected_count = 0;
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const ArrayKind kind : ArraysOf(parameter)) {
        if (!HasContentHash(kind)) continue;
        ++expected_count;
        const std::string key = TensorKey(parameter, kind);
        const auto found = tensors.find(key);
        const int64_t rows = found == tensors.end() ? 0 : found->second.rows;
        const int64_t expected_rows = ShapeOf(parameter, kind)->rows;
        if (rows != expected_rows) {
          return Invalid(DisplayName(key), absl::StrCat("want ", expected_rows, " rows, got ", rows));
        }
      }
    }
  }
  if (tensors.size() == expected_count) return absl::OkStatus();
  return Invalid("tensors", absl::StrCat("want ", expected_count, ", got ", tensors.size()));
}

absl::StatusOr<std::vector<int64_t>> MergeStepCounts(const ModelSpec& spec, const std::vector<const Part*>& parts) {
  std::map<std::string, int64_t> merged;
  for (const Part* const part : parts) {
    for (const auto& [name, count] : part->step_counts) {
      const int64_t known = merged.emplace(name, count).first->second;
      if (known != count) {
        return Invalid(DisplayName(name), absl::StrCat("node ", part->node, ": want ", known, " steps, got ", count));
      }
    }
  }
  std::vector<int64_t> counts;
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const auto found = merged.find(parameter.name);
      if (found == merged.end()) return Invalid(DisplayName(parameter.name), "step count not found");
      counts.push_back(found->second);
    }
  }
  if (counts.size() == merged.size()) return counts;
  return Invalid("step counts", absl::StrCat("want ", counts.size(), ", got ", merged.size()));
}

}  // namespace

absl::Status CheckRankFiles(absl::Span<const FileEntry> files, const World& world) {
  size_t next = 0;
  for (int rank = 0; rank < world.size; ++rank) {
    for (int index = 0; index == 0 || next < files.size(); ++index, ++next) {
      const std::string expected = RankFileName(rank, world.size, index);
      const bool found = next < files.size() && files[next].name == expected;
      if (!found && index == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("want file ", expected, ", got ", next < files.size() ? NameText(files[next].name) : "none"));
      }
      if (!found) break;
    }
  }
  if (next == files.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("file ", NameText(files[next].name), ": not a file of a rank"));
}

absl::StatusOr<std::vector<int64_t>> MergeParts(const ModelSpec& spec, const std::vector<Part>& parts,
                                                Manifest& manifest) {
  std::vector<const Part*> by_node;
  for (const Part& part : parts) by_node.push_back(&part);
  std::stable_sort(by_node.begin(), by_node.end(), [](const Part* a, const Part* b) { return a->node < b->node; });
  std::vector<FileEntry> files;
  ContentHashes tensors;
  for (const Part* const part : by_node) {
    files.insert(files.end(), part->files.begin(), part->files.end());
    for (const auto& [key, hash] : part->tensors) tensors[key] += hash;
  }
  RETURN_IF_ERROR(CheckRankFiles(files, manifest.world));
  RETURN_IF_ERROR(CheckTensors(spec, tensors));
  ASSIGN_OR_RETURN(std::vector<int64_t> counts, MergeStepCounts(spec, by_node));
  manifest.files = std::move(files);
  manifest.tensors = std::move(tensors);
  return counts;
}

}  // namespace paramshard::checkpoint
