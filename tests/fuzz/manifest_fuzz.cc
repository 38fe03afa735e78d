// The parsers of manifests and parts of checkpoints, and of their files' headers: the bytes are a text, which gets its
// hash, or a file. Accepted inputs are consistent, and are the same after they were written and read again.

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/rank_file.h"
#include "common/checkpoint/safetensors_image.h"
#include "kernels/base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace paramshard::checkpoint {
namespace {

constexpr char kBeforeHash[] = " \"hash\": \"";
constexpr char kAfterHash[] = "\"\n}\n";

// The text with its hash behind it, in place of the one that it may have.
std::string Sealed(std::string text) {
  const size_t begin = text.rfind(kBeforeHash);
  if (begin != std::string::npos) text.resize(begin);
  text += kBeforeHash;
  return absl::StrCat(text, HashText(HashBytes(text)), kAfterHash);
}

void CheckManifest(const std::string& text) {
  const absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return;
  PARAMSHARD_CHECK(manifest->world.size >= 1 && manifest->world.size % manifest->world.shard_size == 0);
  PARAMSHARD_CHECK(manifest->size_bytes() >= 0);
  for (const FileEntry& file : manifest->files) {
    PARAMSHARD_CHECK(file.header_bytes <= file.size_bytes && !absl::StrContains(file.name, "/"));
  }
  const absl::StatusOr<std::string> again = SerializeManifest(*manifest);
  PARAMSHARD_CHECK(again.ok());
  PARAMSHARD_CHECK(ParseManifest(*again).value() == *manifest);
}

void CheckPart(const std::string& text) {
  const absl::StatusOr<Part> part = ParsePart(text);
  if (part.ok()) PARAMSHARD_CHECK(ParsePart(SerializePart(*part)).value() == *part);
}

void CheckFile(const std::string& bytes) {
  const absl::StatusOr<ParsedImage> image = ParseImage(bytes);
  if (!image.ok()) return;
  const auto runs = RunsOf(image->header, image->header_bytes);
  if (!runs.ok()) return;
  int64_t end = image->header_bytes;
  for (const RowRun& run : *runs) {
    PARAMSHARD_CHECK(run.offset_bytes == end && run.rows >= 1 && run.row_bytes >= 1 && run.first_row >= 0);
    end += run.size_bytes();
  }
  PARAMSHARD_CHECK(end == static_cast<int64_t>(bytes.size()));
  PARAMSHARD_CHECK(EntryOf("f", bytes).ok());
}

void Run(const std::string& input) {
  CheckManifest(input);
  CheckPart(input);
  CheckFile(input);
}

std::string Mend(std::string input, Mutator& mutator) {
  return absl::StartsWith(input, "{") && mutator.Below(8) > 0 ? Sealed(std::move(input)) : input;
}

std::string SeedManifest() {
  Manifest manifest{.model = "m", .save_id = 1, .save_serial = 2, .history = 3, .step = 4, .version = 4};
  manifest.parent = Manifest::Parent{.history = 5, .step = 6};
  manifest.world = {.size = 2, .shard_size = 1};
  manifest.files.push_back({.name = "rank-00000-of-00002.safetensors", .size_bytes = 100, .header_bytes = 50});
  manifest.files.push_back({.name = "common.safetensors", .size_bytes = 90, .header_bytes = 8, .chunk_sums = {7, 8}});
  manifest.tensors["master/w"] = {.sum = 9, .rows = 10};
  return *SerializeManifest(manifest);
}

std::string SeedPart() {
  Part part{.node = 1, .step_counts = {{"w", 3}}};
  part.files.push_back({.name = "f", .size_bytes = 100, .header_bytes = 50, .chunk_sums = {1}});
  part.tensors["master/w"] = {.sum = 9, .rows = 10};
  return SerializePart(part);
}

std::string SeedFile() {
  SafetensorsImage image;
  image.Add<int64_t>("numbers", safetensors::Dtype::kI64, {1, 2, 3});
  image.Add<uint8_t>("client_state/0", safetensors::Dtype::kU8, {1, 2, 3});
  return image.Bytes();
}

}  // namespace
}  // namespace paramshard::checkpoint

const paramshard::FuzzTarget& paramshard::Target() {
  using namespace paramshard::checkpoint;  // NOLINT
  static const auto* const target =
      new FuzzTarget{.seeds = {SeedManifest(), SeedPart(), SeedFile(), "{\n \"hash\": \"", ""},
                     .words = {"{",
                               "}",
                               "[",
                               "]",
                               ",",
                               ":",
                               "\"",
                               "null",
                               "-1",
                               "18446744073709551615",
                               "9223372036854775807",
                               "1e9",
                               "\"files\":",
                               "\"tensors\":",
                               "\"world\":",
                               "\"rows\":",
                               "\"bytes\":",
                               "infinite-future",
                               "..",
                               "\\u0000",
                               "0123456789abcdef0123456789abcdef",
                               "saved_offsets",
                               "[4611686018427387904, 0]",
                               "[0]"},
                     .run = Run,
                     .mend = Mend};
  return *target;
}
