#include "common/checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/safetensors_image.h"
#include "common/checkpoint/sealed_json.h"
#include "common/model/limits.h"
#include "common/model/names.h"
#include "common/safetensors/header.h"
#include "common/safetensors/shallow_json.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace paramshard::checkpoint {
namespace {

using nlohmann::json;

constexpr char kFormatName[] = "paramshard.checkpoint";
constexpr char kPartFormatName[] = "paramshard.checkpoint.part";
constexpr char kTensors[] = "tensors";
constexpr int64_t kMaxNumber = int64_t{1} << 62;
constexpr int64_t kMaxWorldSize = 1'000'000;
constexpr size_t kHashDigits = 32;

json ToJson(const FileEntry& file) {
  std::string sums;
  sums.reserve(file.chunk_sums.size() * kHashDigits);
  for (const absl::uint128 sum : file.chunk_sums) sums += HashText(sum);
  return {{"name", file.name},
          {"bytes", file.size_bytes},
          {"header_bytes", file.header_bytes},
          {"header_hash", HashText(file.header_hash)},
          {"chunk_bytes", file.chunk_bytes},
          {"chunk_sums", std::move(sums)}};
}

json ToJson(const std::vector<FileEntry>& files) {
  json list = json::array();
  for (const FileEntry& file : files) list.push_back(ToJson(file));
  return list;
}

// Returns the text of the member "tensors": an object with a member for each tensor.
std::string TextOf(const ContentHashes& tensors) {
  std::string text;
  for (const auto& [key, hash] : tensors) {
    absl::StrAppend(&text, text.empty() ? "{" : ",", "\n  ", safetensors::JsonText(key), ": {\n   \"hash\": \"",
                    HashText(hash.sum), "\",\n   \"rows\": ", hash.rows, "\n  }");
  }
  return text.empty() ? "{}" : text + "\n }";
}

// Returns true for a name of a file in the checkpoint's folder.
bool IsFileName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

absl::StatusOr<FileEntry> ParseFile(const json& value, const std::string& where) {
  const JsonObject object(value, where);
  FileEntry file;
  ASSIGN_OR_RETURN(file.name, object.Text("name"));
  if (!IsFileName(file.name)) return object.Unexpected("name", "the name of a file in the folder");
  ASSIGN_OR_RETURN(file.size_bytes, object.Number("bytes", safetensors::kLengthBytes, kMaxNumber));
  const int64_t max_header_bytes = std::min(file.size_bytes, safetensors::kLengthBytes + safetensors::kMaxHeaderBytes);
  ASSIGN_OR_RETURN(file.header_bytes, object.Number("header_bytes", safetensors::kLengthBytes, max_header_bytes));
  ASSIGN_OR_RETURN(file.header_hash, object.Hash("header_hash"));
  file.chunk_bytes = kMaxChunkBytes;
  if (object.Has("chunk_bytes")) {
    ASSIGN_OR_RETURN(file.chunk_bytes, object.Number("chunk_bytes", 1, kMaxChunkBytes));
  }
  ASSIGN_OR_RETURN(const std::string sums, object.Text("chunk_sums"));
  for (size_t begin = 0; begin < sums.size(); begin += kHashDigits) {
    const auto sum = ParseHash(absl::string_view(sums).substr(begin, kHashDigits));
    if (!sum.has_value()) return object.Unexpected("chunk_sums", "32 hexadecimal digits of each chunk");
    file.chunk_sums.push_back(*sum);
  }
  return file;
}

absl::StatusOr<std::vector<FileEntry>> ParseFiles(const JsonObject& object) {
  ASSIGN_OR_RETURN(const json* const list, object.Array("files"));
  std::vector<FileEntry> files;
  std::set<std::string> names;
  int64_t room = kMaxNumber;  // sums of sizes fit
  for (const json& value : *list) {
    ASSIGN_OR_RETURN(FileEntry file, ParseFile(value, absl::StrCat("files[", files.size(), "]")));
    if (file.size_bytes > room) return object.Unexpected("files", "sizes whose sum fits");
    room -= file.size_bytes;
    if (!names.insert(file.name).second) return object.Unexpected("files", "each name once");
    files.push_back(std::move(file));
  }
  return files;
}

absl::StatusOr<ContentHash> ParseTensor(const json& value) {
  const JsonObject tensor(value, "");
  ContentHash hash;
  ASSIGN_OR_RETURN(hash.rows, tensor.Number("rows", 0, kMaxElements));
  ASSIGN_OR_RETURN(hash.sum, tensor.Hash("hash"));
  return hash;
}

// Takes the members of "tensors" while the text is parsed.
class TensorTaker {
 public:
  bool Take(const safetensors::JsonMember& member) {
    if (member.depth != 2 || member.object != kTensors) return false;
    const absl::StatusOr<ContentHash> hash = ParseTensor(member.value);
    const auto refuse = [&](absl::string_view message) {
      first_.Update(
          absl::InvalidArgumentError(absl::StrCat("tensor ", safetensors::NameText(member.name), ": ", message)));
    };
    const size_t known = tensors_.size();
    if (hash.ok()) tensors_.emplace_hint(tensors_.end(), member.name, *hash);  // a manifest has them in order
    if (tensors_.size() == known) refuse(hash.ok() ? "duplicate name" : hash.status().message());
    return true;
  }

  // Call it after the text is parsed: errors of the text come first.
  absl::StatusOr<ContentHashes> Finish(const JsonObject& object) {
    RETURN_IF_ERROR(object.Object(kTensors).status());
    RETURN_IF_ERROR(first_);
    return std::move(tensors_);
  }

 private:
  ContentHashes tensors_;
  absl::Status first_;
};

absl::Status CheckFormat(const JsonObject& object, const char* name) {
  ASSIGN_OR_RETURN(const std::string format, object.Text("format"));
  if (format != name) return object.Unexpected("format", name);
  ASSIGN_OR_RETURN(const int64_t version, object.Number("format_version", 1, kMaxNumber));
  if (version <= kFormatVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("format version: want at most ", kFormatVersion, ", got ", version,
                                                    ": a newer program has written it"));
}

absl::StatusOr<std::optional<Manifest::Parent>> ParseParent(const JsonObject& object) {
  if (!object.Has("parent")) return std::optional<Manifest::Parent>();
  ASSIGN_OR_RETURN(const json* const value, object.Object("parent"));
  const JsonObject in_parent(*value, "parent");
  Manifest::Parent parent;
  ASSIGN_OR_RETURN(parent.history, in_parent.Hash("history"));
  ASSIGN_OR_RETURN(parent.step, in_parent.Number("step", 0, kMaxNumber));
  return std::optional(parent);
}

absl::StatusOr<World> ParseWorld(const JsonObject& object) {
  ASSIGN_OR_RETURN(const json* const value, object.Object("world"));
  const JsonObject in_world(*value, "world");
  ASSIGN_OR_RETURN(const int64_t size, in_world.Number("size", 1, kMaxWorldSize));
  ASSIGN_OR_RETURN(const int64_t shard_size, in_world.Number("shard_size", 1, size));
  if (size % shard_size != 0) return in_world.Unexpected("shard_size", "a divisor of the size");
  return World{.size = static_cast<int>(size), .shard_size = static_cast<int>(shard_size)};
}

absl::Status ParseSpecEntry(const JsonObject& object, Manifest& manifest) {
  ASSIGN_OR_RETURN(const json* const value, object.Object("spec"));
  const JsonObject in_spec(*value, "spec");
  ASSIGN_OR_RETURN(const std::string fingerprint, in_spec.Text("fingerprint"));
  if (fingerprint.size() != kHashDigits / 2 || !absl::SimpleHexAtoi(fingerprint, &manifest.spec_fingerprint)) {
    return in_spec.Unexpected("fingerprint", "16 hexadecimal digits");
  }
  ASSIGN_OR_RETURN(manifest.spec_bytes, in_spec.Number("bytes", 0, kMaxManifestBytes));
  ASSIGN_OR_RETURN(manifest.spec_hash, in_spec.Hash("hash"));
  return absl::OkStatus();
}

absl::Status ParseNumbers(const JsonObject& object, Manifest& manifest) {
  ASSIGN_OR_RETURN(manifest.model, object.Text("model"));
  ASSIGN_OR_RETURN(manifest.save_id, object.Hash("save_id"));
  ASSIGN_OR_RETURN(manifest.save_serial, object.Number("save_serial", 1, kMaxNumber));
  ASSIGN_OR_RETURN(manifest.history, object.Hash("history"));
  ASSIGN_OR_RETURN(manifest.step, object.Number("step", 0, kMaxNumber));
  ASSIGN_OR_RETURN(manifest.version, object.Number("version", 0, kMaxNumber));
  ASSIGN_OR_RETURN(const std::string saved_at, object.Text("saved_at"));
  absl::Time time;
  if (!absl::ParseTime(absl::RFC3339_full, saved_at, &time, /*err=*/nullptr) || time == absl::InfiniteFuture() ||
      time == absl::InfinitePast()) {
    return object.Unexpected("saved_at", "a time of RFC 3339");
  }
  manifest.saved_at = absl::FromUnixMillis(absl::ToUnixMillis(time));
  return absl::OkStatus();
}

}  // namespace

std::string SerializePart(const Part& part) {
  return SealJson({{"format", kPartFormatName},
                   {"format_version", kFormatVersion},
                   {"node", part.node},
                   {"files", ToJson(part.files)},
                   {kTensors, nullptr},
                   {"step_counts", json(part.step_counts)}},
                  {{kTensors, TextOf(part.tensors)}});
}

absl::StatusOr<Part> ParsePart(absl::string_view text) {
  TensorTaker tensors;
  ASSIGN_OR_RETURN(const json value, UnsealJson(text, [&](const auto& member) { return tensors.Take(member); }));
  const JsonObject object(value, "");
  RETURN_IF_ERROR(CheckFormat(object, kPartFormatName));
  Part part;
  ASSIGN_OR_RETURN(const int64_t node, object.Number("node", 0, kMaxWorldSize));
  part.node = static_cast<int>(node);
  ASSIGN_OR_RETURN(part.files, ParseFiles(object));
  ASSIGN_OR_RETURN(part.tensors, tensors.Finish(object));
  ASSIGN_OR_RETURN(const json* const counts, object.Object("step_counts"));
  const JsonObject in_counts(*counts, "step_counts");
  for (const auto& [name, count] : counts->items()) {
    ASSIGN_OR_RETURN(part.step_counts[name], in_counts.Number(name.c_str(), 0, kMaxNumber));
  }
  return part;
}

int64_t Manifest::size_bytes() const {
  int64_t bytes = spec_bytes;
  for (const FileEntry& file : files) bytes += file.size_bytes;
  return bytes;
}

absl::StatusOr<std::string> SerializeManifest(const Manifest& manifest) {
  json object = {{"format", kFormatName},
                 {"format_version", kFormatVersion},
                 {"model", manifest.model},
                 {"save_id", HashText(manifest.save_id)},
                 {"save_serial", manifest.save_serial},
                 {"saved_at", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", manifest.saved_at, absl::UTCTimeZone())},
                 {"history", HashText(manifest.history)},
                 {"step", manifest.step},
                 {"version", manifest.version},
                 {"world", {{"size", manifest.world.size}, {"shard_size", manifest.world.shard_size}}},
                 {"spec",
                  {{"fingerprint", absl::StrFormat("%016x", manifest.spec_fingerprint)},
                   {"bytes", manifest.spec_bytes},
                   {"hash", HashText(manifest.spec_hash)}}},
                 {"files", ToJson(manifest.files)},
                 {kTensors, nullptr}};
  if (manifest.parent.has_value()) {
    object["parent"] = {{"history", HashText(manifest.parent->history)}, {"step", manifest.parent->step}};
  }
  std::string text = SealJson(object, {{kTensors, TextOf(manifest.tensors)}});
  if (static_cast<int64_t>(text.size()) <= kMaxManifestBytes) return text;
  return absl::ResourceExhaustedError(absl::StrCat("write the manifest of ", DisplayName(manifest.model),
                                                   ": want at most ", kMaxManifestBytes, " bytes, got ", text.size()));
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  TensorTaker tensors;
  ASSIGN_OR_RETURN(const json value, UnsealJson(text, [&](const auto& member) { return tensors.Take(member); }));
  const JsonObject object(value, "");
  RETURN_IF_ERROR(CheckFormat(object, kFormatName));
  Manifest manifest;
  RETURN_IF_ERROR(ParseNumbers(object, manifest));
  ASSIGN_OR_RETURN(manifest.parent, ParseParent(object));
  ASSIGN_OR_RETURN(manifest.world, ParseWorld(object));
  RETURN_IF_ERROR(ParseSpecEntry(object, manifest));
  ASSIGN_OR_RETURN(manifest.files, ParseFiles(object));
  ASSIGN_OR_RETURN(manifest.tensors, tensors.Finish(object));
  return manifest;
}

absl::StatusOr<FileEntry> EntryOf(const std::string& name, absl::string_view bytes) {
  ASSIGN_OR_RETURN(const ParsedImage image, ParseImage(bytes));
  FileEntry entry{.name = name,
                  .size_bytes = static_cast<int64_t>(bytes.size()),
                  .header_bytes = image.header_bytes,
                  .header_hash = HashBytes(bytes.substr(0, image.header_bytes))};
  ASSIGN_OR_RETURN(const std::vector<RowRun> runs, RunsOf(image.header, image.header_bytes));
  for (const RowRun& run : runs) {
    for (const RowRun& chunk : ChunksOf(run)) {
      const absl::string_view rows = bytes.substr(chunk.offset_bytes, chunk.size_bytes());
      entry.chunk_sums.push_back(
          ChunkSum(chunk, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(rows.data()), rows.size())));
    }
  }
  return entry;
}

}  // namespace paramshard::checkpoint
