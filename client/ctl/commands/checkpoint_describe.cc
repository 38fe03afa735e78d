#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/cell.h"
#include "client/ctl/checkpoint_text.h"
#include "client/ctl/commands.h"
#include "client/ctl/table.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/tensor_key.h"
#include "common/safetensors/dtype.h"

namespace paramshard::ctl {
namespace {

using checkpoint::Manifest;
using checkpoint::Reader;

struct TensorLine {
  std::string key;
  checkpoint::ArrayShape shape;
  std::string hash;  // empty: it has none of its own
  int64_t steps = 0;
};

std::vector<TensorLine> TensorsOf(const Reader& reader) {
  std::vector<TensorLine> lines;
  size_t index = 0;
  for (const UnitSpec& unit : reader.spec().units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const int64_t steps = reader.common().step_counts[index++];
      for (const checkpoint::ArrayKind kind : checkpoint::ArraysOf(parameter)) {
        std::string key = checkpoint::TensorKey(parameter, kind);
        const auto hash = reader.manifest().tensors.find(key);
        std::string hash_text = hash == reader.manifest().tensors.end() ? "" : checkpoint::HashText(hash->second.sum);
        lines.push_back({std::move(key), *checkpoint::ShapeOf(parameter, kind), std::move(hash_text), steps});
      }
    }
  }
  return lines;
}

std::string DescriptionText(const Reader& reader) {
  const Manifest& manifest = reader.manifest();
  Properties properties;
  properties.Add("model", manifest.model);
  properties.Add("step", absl::StrCat(manifest.step));
  properties.Add("version", absl::StrCat(manifest.version));
  properties.Add("history", checkpoint::HashText(manifest.history));
  if (manifest.parent.has_value()) {
    properties.Add("goes on from", absl::StrCat("step ", manifest.parent->step, " of ",
                                                checkpoint::HashText(manifest.parent->history)));
  }
  properties.Add("save serial", absl::StrCat(manifest.save_serial));
  properties.Add("saved", SavedAtCell(manifest.saved_at));
  properties.Add("world", absl::StrCat(manifest.world.size, " ranks, shard size ", manifest.world.shard_size));
  properties.Add("files", absl::StrCat(manifest.files.size()));
  properties.Add("size", BytesCell(manifest.size_bytes()));
  properties.Add("spec fingerprint", absl::StrFormat("%016x", manifest.spec_fingerprint));
  Table table({Left("TENSOR"), Left("TYPE"), Right("ROWS"), Right("COLUMNS"), Right("SIZE"), Right("STEPS"),
               Left("CONTENT HASH")});
  for (const TensorLine& line : TensorsOf(reader)) {
    table.AddRow({line.key, std::string(safetensors::DtypeName(line.shape.dtype)), absl::StrCat(line.shape.rows),
                  absl::StrCat(line.shape.columns), BytesCell(line.shape.size_bytes()), absl::StrCat(line.steps),
                  HashCell(line.hash)});
  }
  return absl::StrCat(properties.Text(), "\n", table.Text());
}

nlohmann::ordered_json DescriptionJson(const Reader& reader) {
  nlohmann::ordered_json json = CheckpointJson(reader.folder(), reader.manifest());
  auto files = nlohmann::ordered_json::array();
  for (const checkpoint::FileEntry& file : reader.manifest().files) {
    files.push_back({{"name", file.name}, {"sizeBytes", absl::StrCat(file.size_bytes)}});
  }
  json["files"] = std::move(files);
  auto tensors = nlohmann::ordered_json::array();
  for (const TensorLine& line : TensorsOf(reader)) {
    tensors.push_back({{"key", line.key},
                       {"dtype", std::string(safetensors::DtypeName(line.shape.dtype))},
                       {"rows", absl::StrCat(line.shape.rows)},
                       {"columns", absl::StrCat(line.shape.columns)},
                       {"stepCount", absl::StrCat(line.steps)}});
    if (!line.hash.empty()) tensors.back()["contentHash"] = line.hash;
  }
  json["tensors"] = std::move(tensors);
  return json;
}

class CheckpointDescribe final : public Command {
 public:
  void AddOptions(CLI::App& app) override { AddFolderArgument(app, folder_, "the folder of a checkpoint"); }
  std::vector<std::string> Objects() const override { return {folder_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    ASSIGN_OR_RETURN(const Reader reader, Reader::Open(folder_, {}));
    const bool as_table = context.options().output == Output::kTable;
    context.streams().out << (as_table ? DescriptionText(reader) : JsonText(DescriptionJson(reader)));
    return kSucceeded;
  }

 private:
  std::string folder_;
};

}  // namespace

const CommandInfo kCheckpointDescribe = {.name = "checkpoint describe",
                                         .help = "show the numbers and tensors of a checkpoint",
                                         .asks_daemon = false,
                                         .create = Create<CheckpointDescribe>};

}  // namespace paramshard::ctl
