#include "tests/common/checkpoint/saved_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/rank_image.h"
#include "common/checkpoint/step_folder.h"
#include "common/model/layout.h"
#include "common/model/model_spec_difference.h"
#include "common/model/model_spec_proto.h"
#include "kernels/base/check.h"
#include "kernels/formats/format.h"
#include "kernels/optim/optimizers.h"

namespace paramshard::checkpoint {
namespace {

namespace fs = std::filesystem;

ParameterSpec Parameter(std::string name, std::vector<int64_t> shape, Format format) {
  ParameterSpec parameter{.name = std::move(name), .shape = std::move(shape)};
  parameter.encoding.format = format;
  return parameter;
}

ParameterSpec Frozen(std::string name, std::vector<int64_t> shape, Format format) {
  ParameterSpec parameter = Parameter(std::move(name), std::move(shape), format);
  parameter.trainable = false;
  return parameter;
}

}  // namespace

ModelSpec Checked(const ModelSpec& spec) {
  const absl::StatusOr<ModelSpec> checked = ParseModelSpec(ModelSpecToProto(spec));
  PARAMSHARD_CHECK(checked.ok());
  return *checked;
}

ModelSpec SpecOfEverything() {
  ModelSpec spec{.name = "everything"};
  spec.small_parameter_bytes = 2048;
  UnitSpec first{.name = "first"};
  first.parameters.push_back(Parameter("w \"0\"", {37, 5}, Format::kFP32));
  first.parameters.push_back(Parameter("halves", {70, 33}, Format::kBF16));
  first.parameters.back().master_type = MasterType::kBF16Remainder;
  first.parameters.push_back(Parameter("delayed", {66, 130}, Format::kFP8TensorDelayed));
  first.parameters.back().encoding.delayed_scaling = DelayedScaling::Options{.history_length = 4};
  first.parameters.back().exp_avg_type = MomentType::kFP8;
  first.parameters.back().exp_avg_sq_type = MomentType::kFP16;
  first.parameters.push_back(Parameter("scalar", {}, Format::kFP8TensorCurrent));
  UnitSpec second{.name = "second"};
  second.parameters.push_back(Parameter("blocks", {3, 50, 129}, Format::kMXFP8));
  second.parameters.back().exp_avg_type = MomentType::kBF16;
  second.parameters.back().exp_avg_sq_type = MomentType::kBF16;
  for (const OptimizerTraits& traits : kOptimizers) {
    spec.groups.push_back({.optimizer = traits.optimizer});
    second.parameters.push_back(Parameter(absl::StrCat("by.", traits.name), {41, 130}, Format::kFP32));
    second.parameters.back().exp_avg_type = MomentType::kFP8;
    second.parameters.back().group = static_cast<int>(traits.optimizer) - 1;
  }
  for (const FormatTraits& traits : kFormats) {
    second.parameters.push_back(Frozen(absl::StrCat("frozen.", traits.name), {301, 67}, traits.format));
  }
  second.parameters.push_back(Frozen("frozen.master", {7, 3}, Format::kMXFP8_2D));
  second.parameters.back().master_type = MasterType::kFP32;
  spec.units = {first, second};
  return Checked(spec);
}

ModelSpec TinySpec() {
  ModelSpec spec{.name = "tiny"};
  spec.units.push_back({.name = "unit", .parameters = {Parameter("w", {3, 2}, Format::kFP8TensorDelayed)}});
  spec.units[0].parameters[0].encoding.delayed_scaling = DelayedScaling::Options{.history_length = 2};
  return Checked(spec);
}

ModelSpec TallSpec(int64_t rows) {
  ModelSpec spec{.name = "tall"};
  spec.units.push_back({.name = "unit", .parameters = {Parameter("w", {rows, 257}, Format::kFP32)}});
  return Checked(spec);
}

SavedModel::SavedModel(ModelSpec spec, uint64_t seed) : spec_(std::move(spec)) {
  std::mt19937_64 random(seed);
  common_ = {.commit_number = 12, .version = 10, .skipped = 2};
  common_.last_answer = {.skipped = false, .gradient_norm = 0.1, .non_finite_count = 0};
  for (int unit = 0; unit < static_cast<int>(spec_.units.size()); ++unit) {
    const auto& parameters = spec_.units[unit].parameters;
    for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
      for (const ArrayKind kind : ArraysOf(parameters[i])) {
        std::vector<uint8_t>& array = arrays_[TensorKey(parameters[i], kind)];
        array.resize(ShapeOf(parameters[i], kind)->size_bytes());
        for (size_t offset = 0; offset < array.size(); offset += sizeof(uint64_t)) {
          const uint64_t bytes = random();
          std::memcpy(array.data() + offset, &bytes, std::min(sizeof(bytes), array.size() - offset));
        }
      }
      common_.step_counts.push_back(static_cast<int64_t>(random() % 1000));
      const Format format = *parameters[i].encoding.format;
      if (!NeedsAmax(format)) continue;
      common_.book.push_back({.unit = unit, .parameter = i, .amax = 1.5f, .scale = 2, .is_fresh = random() % 2 == 0});
      if (format != Format::kFP8TensorDelayed) continue;
      const int64_t length = parameters[i].encoding.delayed_scaling.value_or(DelayedScaling::Options()).history_length;
      common_.book.back().delayed = {.next_scale = 3, .history = std::vector<float>(length, 0.25f)};
    }
  }
}

std::string SavedModel::ClientState(int rank) { return rank % 3 == 1 ? "" : absl::StrCat("of rank ", rank); }

SavedModel::RankFiles SavedModel::FilesOf(const Options& options, int rank, ContentHashes& tensors) const {
  const Layout layout(spec_, options.world.shard_size);
  const auto plan = RankFilePlan::Create(layout, options.world, rank, options.max_header_bytes);
  PARAMSHARD_CHECK(plan.ok());
  const std::string client_state = options.client_state(rank);
  const auto client_state_bytes = static_cast<int64_t>(client_state.size());
  RankFiles files;
  std::vector<absl::Span<const uint8_t>> images;
  files.bytes.reserve(plan->files().size());
  for (const PlannedFile& file : plan->files()) {
    std::string& bytes = files.bytes.emplace_back(file.size_bytes(client_state_bytes), '\0');
    bytes.replace(0, file.header_bytes(), file.Header(client_state_bytes));
    for (const PlannedTensor& tensor : file.tensors()) {
      const std::vector<uint8_t>& array = arrays_.at(tensor.key);
      std::memcpy(bytes.data() + tensor.run.offset_bytes, array.data() + tensor.run.first_row * tensor.run.row_bytes,
                  tensor.run.size_bytes());
    }
    if (file.takes_client_state()) bytes.replace(file.state_bytes(), client_state.size(), client_state);
    images.emplace_back(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    files.entries.push_back(EntryOf(file, images.back(), client_state_bytes));
  }
  AddContentHashes(spec_, *plan, images, files.entries, tensors);
  return files;
}

std::string SavedModel::Write(const std::string& model_folder, const Options& options) const {
  const std::string folder = (fs::path(model_folder) / StepFolderName(options.step, options.history)).string();
  fs::create_directories(folder);
  std::string spec_text;
  PARAMSHARD_CHECK(ModelSpecToProto(spec_).SerializeToString(&spec_text));
  std::vector<Part> parts;
  for (int rank = 0; rank < options.world.size; ++rank) {
    if (rank % options.ranks_per_node == 0) parts.push_back({.node = static_cast<int>(parts.size())});
    const RankFiles files = FilesOf(options, rank, parts.back().tensors);
    for (size_t i = 0; i < files.entries.size(); ++i) {
      WriteText((fs::path(folder) / files.entries[i].name).string(), files.bytes[i]);
      parts.back().files.push_back(files.entries[i]);
    }
  }
  size_t index = 0;
  for (const UnitSpec& unit : spec_.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      parts[index % parts.size()].step_counts[parameter.name] = common_.step_counts[index];
      ++index;
    }
  }
  Manifest manifest{.model = spec_.name,
                    .save_id = 77,
                    .save_serial = options.save_serial,
                    .saved_at = absl::FromUnixMillis(1'700'000'000'123),
                    .history = options.history,
                    .step = options.step,
                    .version = common_.version,
                    .parent = Manifest::Parent{.history = 5, .step = 2},
                    .world = options.world,
                    .spec_fingerprint = ModelSpecFingerprint(spec_),
                    .spec_bytes = static_cast<int64_t>(spec_text.size()),
                    .spec_hash = HashBytes(spec_text)};
  const auto counts = MergeParts(spec_, parts, manifest);
  PARAMSHARD_CHECK(counts.ok() && *counts == common_.step_counts);
  CommonState common = common_;
  common.commit_number = options.step;
  const auto common_texts = SerializeCommonState(spec_, common, options.max_header_bytes);
  PARAMSHARD_CHECK(common_texts.ok());
  for (size_t i = 0; i < common_texts->size(); ++i) {
    manifest.files.push_back(*EntryOf(CommonFileName(static_cast<int>(i)), (*common_texts)[i]));
    WriteText((fs::path(folder) / manifest.files.back().name).string(), (*common_texts)[i]);
  }
  WriteText((fs::path(folder) / kSpecFileName).string(), spec_text);
  WriteText((fs::path(folder) / kManifestFileName).string(), *SerializeManifest(manifest));
  return folder;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  PARAMSHARD_CHECK(file.flush().good());
  PARAMSHARD_CHECK(chmod(path.c_str(), 0600) == 0);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  PARAMSHARD_CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace paramshard::checkpoint
