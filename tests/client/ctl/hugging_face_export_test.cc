// Folders for transformers, from checkpoints: read by the tree's own readers, and by the packages that people have.
// PARAMSHARD_TEST_PYTHON names the interpreter that has them.
#include "client/ctl/hugging_face_export.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/tensor_key.h"
#include "common/safetensors/checkpoint.h"
#include "gmock/gmock.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/format_id.h"
#include "kernels/optim/master_remainder.h"
#include "tests/client/ctl/run_ctl.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/common/safetensors_files.h"
#include "tests/support/status_matchers.h"

namespace paramshard::ctl {
namespace {

using checkpoint::SavedModel;
using safetensors::Checkpoint;
using safetensors::Dtype;
using safetensors::TestTensor;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

namespace fs = std::filesystem;

constexpr int kNotInstalled = 77;
constexpr int64_t kTallRows = 300;
constexpr int64_t kTallColumns = 4099;  // a chunk has 255 rows of them

ParameterSpec Parameter(std::string name, std::vector<int64_t> shape) {
  return {.name = std::move(name), .shape = std::move(shape)};
}

// Every way in which a master is stored, and an output layer that is tied to the embedding.
ModelSpec Spec(bool tied) {
  ModelSpec spec{.name = "exported"};
  UnitSpec unit{.name = "all"};
  unit.parameters = {Parameter("embed_tokens.weight", {6, 4}), Parameter("halves.weight", {5, 2, 3}),
                     Parameter("norm.weight", {4}), Parameter("frozen.weight", {130, 8}),
                     Parameter("tall.weight", {kTallRows, kTallColumns})};
  unit.parameters[1].encoding.format = Format::kBF16;
  unit.parameters[1].master_type = MasterType::kBF16Remainder;
  unit.parameters[3].encoding.format = Format::kFP8Block128x128;
  unit.parameters[3].trainable = false;
  if (tied) unit.parameters.push_back(Parameter("lm_head.weight", {6, 4}));
  spec.units = {unit};
  return checkpoint::Checked(spec);
}

std::vector<float> Values(int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = 1.0f / static_cast<float>(i % 1009 + 1);
  return values;
}

// Masters are numbers; all else is random.
SavedModel Model(bool tied) {
  const SavedModel random(Spec(tied), 5);
  SavedModel::Arrays arrays = random.arrays();
  for (const ParameterSpec& parameter : random.spec().units[0].parameters) {
    if (checkpoint::PlanesAreState(parameter)) continue;
    const std::vector<float> values = Values(parameter.rows() * parameter.columns());
    std::vector<uint8_t>& master = arrays.at("master/" + parameter.name);
    if (parameter.master_type == MasterType::kFP32) {
      master = safetensors::BytesOf(values);
    } else {
      std::vector<int16_t> remainders(values.size());
      SplitMasters(values.data(), static_cast<int64_t>(values.size()), master.data(), remainders.data());
      arrays.at("remainder/" + parameter.name) = safetensors::BytesOf(remainders);
    }
  }
  // Codes and scales of any bits would decode to what is no number.
  std::fill(arrays.at("plane/frozen.weight").begin(), arrays.at("plane/frozen.weight").end(), 0x38);  // 1.0
  arrays.at("plane.scale/frozen.weight") = safetensors::BytesOf(std::vector<float>{0.5f, 2.0f});
  return SavedModel(random.spec(), std::move(arrays), random.common());
}

class HuggingFaceExportTest : public safetensors::FolderTest {
 protected:
  // A folder as transformers writes it: two files and an index, of other values.
  void WriteLike(Dtype dtype = Dtype::kBF16, const std::string& config = R"({"torch_dtype": "bfloat16"})") {
    fs::create_directories(Path("like"));
    safetensors::WriteFile(Path("like/model-00001-of-00002.safetensors"),
                           {Zeros("embed_tokens.weight", dtype, {6, 4}), Zeros("halves.weight", Dtype::kF32, {5, 2, 3}),
                            Zeros("norm.weight", dtype, {4})},
                           {{"format", "pt"}});
    safetensors::WriteFile(
        Path("like/model-00002-of-00002.safetensors"),
        {Zeros("frozen.weight", dtype, {130, 8}), Zeros("tall.weight", Dtype::kF32, {kTallRows, kTallColumns})},
        {{"format", "pt"}});
    std::map<std::string, std::string> weight_map;
    for (const char* name : {"embed_tokens.weight", "halves.weight", "norm.weight"}) {
      weight_map[name] = "model-00001-of-00002.safetensors";
    }
    for (const char* name : {"frozen.weight", "tall.weight"}) weight_map[name] = "model-00002-of-00002.safetensors";
    WriteText("like/model.safetensors.index.json", safetensors::SerializeIndex(weight_map, 1));
    WriteText("like/config.json", config);
    WriteText("like/tokenizer.json", "{}");
    WriteText("like/README.md", "of another model");
  }
  static TestTensor Zeros(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape) {
    return {name, dtype, shape, std::vector<uint8_t>(*safetensors::TensorBytes(dtype, shape))};
  }

  // Writes a checkpoint of a world of three ranks.
  void WriteCheckpoint(bool tied = false) {
    checkpoint_ = Model(tied).Write(Path("saves"), {.world = {3, 3}, .history = 1});
  }

  absl::StatusOr<HuggingFaceExportReport> Export(std::optional<Dtype> dtype = std::nullopt) const {
    return ExportToHuggingFace({.checkpoint = checkpoint_,
                                .like = Path("like"),
                                .dtype = dtype,
                                .rules_path = rules_path_,
                                .out = Path("out")},
                               nullptr);
  }

  TestTensor Read(const std::string& name) const {
    const absl::StatusOr<Checkpoint> opened = Checkpoint::Open(Path("out"));
    EXPECT_OK(opened.status());
    const Checkpoint::Tensor* const tensor = opened->Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    std::vector<uint8_t> bytes(tensor->info->size_bytes);
    EXPECT_OK(tensor->Read(0, absl::MakeSpan(bytes)));
    return {name, tensor->info->dtype, tensor->info->shape, std::move(bytes)};
  }
  std::vector<std::string> NamesIn(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Path(folder))) names.push_back(entry.path().filename());
    return names;
  }

  std::string checkpoint_;
  std::string rules_path_;
};

std::vector<uint8_t> Bf16Bytes(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), [](float value) { return EncodeBFloat16(value); });
  return safetensors::BytesOf(bits);
}

TEST_F(HuggingFaceExportTest, EveryMasterIsThereInTheTypesOfTheOther) {
  WriteLike();
  WriteCheckpoint();
  ASSERT_OK_AND_ASSIGN(const HuggingFaceExportReport report, Export());
  EXPECT_EQ(report.step, 12);
  EXPECT_EQ(report.tensor_count, 5);
  EXPECT_EQ(Read("embed_tokens.weight").dtype, Dtype::kBF16);
  EXPECT_EQ(Read("embed_tokens.weight").bytes, Bf16Bytes(Values(24)));
  EXPECT_EQ(Read("halves.weight").dtype, Dtype::kF32);
  EXPECT_EQ(Read("halves.weight").shape, std::vector<int64_t>({5, 2, 3}));
  EXPECT_EQ(Read("halves.weight").bytes, safetensors::BytesOf(Values(30))) << "joined exactly";
  EXPECT_EQ(Read("norm.weight").bytes, Bf16Bytes(Values(4)));
  EXPECT_TRUE(Read("tall.weight").bytes == safetensors::BytesOf(Values(kTallRows * kTallColumns)));
  std::vector<float> frozen(130 * 8, 0.5f);
  std::fill(frozen.begin() + 128 * 8, frozen.end(), 2.0f);
  EXPECT_EQ(Read("frozen.weight").bytes, Bf16Bytes(frozen));
}

TEST_F(HuggingFaceExportTest, TheFolderHasTheFilesOfTheOtherButWhatIsAboutThatOne) {
  WriteLike();
  WriteCheckpoint();
  ASSERT_OK(Export());
  EXPECT_THAT(NamesIn("out"),
              UnorderedElementsAre("config.json", "tokenizer.json", "model.safetensors.index.json",
                                   "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_THAT(NamesIn("."), UnorderedElementsAre("like", "out", "saves"));
  EXPECT_EQ(checkpoint::ReadText(Path("out/config.json")), checkpoint::ReadText(Path("like/config.json")));
  ASSERT_OK_AND_ASSIGN(const Checkpoint opened, Checkpoint::Open(Path("out")));
  EXPECT_EQ(opened.files()[0].metadata().at("format"), "pt");
}

TEST_F(HuggingFaceExportTest, AllTensorsMayHaveAnotherTypeWhichTheConfigSays) {
  WriteLike(Dtype::kF8E4M3);
  WriteCheckpoint();
  EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("embed_tokens.weight"), HasSubstr("got F8_E4M3"))));
  ASSERT_OK(Export(Dtype::kF32));
  EXPECT_EQ(Read("embed_tokens.weight").bytes, safetensors::BytesOf(Values(24)));
  EXPECT_EQ(nlohmann::json::parse(checkpoint::ReadText(Path("out/config.json")))["torch_dtype"], "float32");
}

TEST_F(HuggingFaceExportTest, RulesGiveSomeTensorsAnotherType) {
  WriteLike(Dtype::kBF16);
  WriteCheckpoint();
  rules_path_ = Path("rules.txt");
  checkpoint::WriteText(rules_path_, "embed*: FP32\n*norm*: KEEP\n*: FP16\n");
  ASSERT_OK(Export());
  EXPECT_EQ(Read("embed_tokens.weight").bytes, safetensors::BytesOf(Values(24)));
  ASSERT_OK_AND_ASSIGN(const Checkpoint opened, Checkpoint::Open(Path("out")));
  for (const safetensors::SafetensorsFile& file : opened.files()) {
    for (const safetensors::TensorInfo& tensor : file.tensors()) {
      const bool is_norm = tensor.name.find("norm") != tensor.name.npos;
      const Dtype expected = tensor.name.starts_with("embed") ? Dtype::kF32 : is_norm ? Dtype::kBF16 : Dtype::kF16;
      EXPECT_EQ(tensor.dtype, expected) << tensor.name;
    }
  }
  for (const auto& [rules, error] : {std::pair("*: MXFP8\n", "rules.txt:1: want FP32, BF16, FP16 or KEEP, got MXFP8"),
                                     std::pair("nothing: BF16\n", "no tensor matches nothing")}) {
    checkpoint::WriteText(rules_path_, rules);
    EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)));
  }
}

TEST_F(HuggingFaceExportTest, OneFileIsExportedAsOne) {
  WriteCheckpoint();
  fs::create_directories(Path("like"));
  WriteText("like/config.json", "{}");
  std::vector<TestTensor> tensors;
  const ModelSpec spec = Spec(false);
  for (const ParameterSpec& parameter : spec.units[0].parameters) {
    tensors.push_back(Zeros(parameter.name, Dtype::kF16, parameter.shape));
  }
  WriteTensors("like/model.safetensors", tensors);
  ASSERT_OK_AND_ASSIGN(const HuggingFaceExportReport report, Export());
  EXPECT_THAT(report.weight_files, ElementsAre("model.safetensors"));
  EXPECT_THAT(NamesIn("out"), UnorderedElementsAre("config.json", "model.safetensors"));
}

TEST_F(HuggingFaceExportTest, TheFirstTensorThatDoesNotFitIsNamedAndNothingIsLeft) {
  WriteCheckpoint();
  WriteLike();
  const std::string second = "like/model-00002-of-00002.safetensors";
  const std::vector<std::pair<std::vector<TestTensor>, std::string>> cases = {
      {{Zeros("frozen.weight", Dtype::kF32, {8, 130}), Zeros("tall.weight", Dtype::kF32, {kTallRows, kTallColumns})},
       "frozen.weight: want [8, 130]"},
      {{Zeros("frozen.weight", Dtype::kF32, {130, 8}), Zeros("tall.weight", Dtype::kI64, {kTallRows, kTallColumns})},
       "tall.weight: want F32, BF16 or F16, got I64"},
  };
  for (const auto& [tensors, message] : cases) {
    WriteTensors(second, tensors);
    EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  WriteLike();
  checkpoint_ = SavedModel(checkpoint::TinySpec(), 1).Write(Path("tiny"), {.history = 1});
  EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no parameter embed_tokens.weight")));
  EXPECT_FALSE(fs::exists(Path("out")));
  EXPECT_THAT(NamesIn("."), UnorderedElementsAre("like", "saves", "tiny"));
}

TEST_F(HuggingFaceExportTest, ATiedTensorIsLeftOutIfItsMasterIsTheSame) {
  WriteCheckpoint(/*tied=*/true);
  WriteLike();
  EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lm_head.weight")));
  WriteLike(Dtype::kBF16, R"({"tie_word_embeddings": true})");
  ASSERT_OK_AND_ASSIGN(const HuggingFaceExportReport report, Export());
  EXPECT_THAT(report.tied_tensors, ElementsAre("lm_head.weight"));
  SavedModel::Arrays arrays = Model(true).arrays();
  arrays.at("master/lm_head.weight")[0] ^= 1;
  checkpoint_ = SavedModel(Spec(true), arrays, Model(true).common()).Write(Path("untied"), {.history = 1});
  fs::remove_all(Path("out"));
  EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lm_head.weight")));
}

TEST_F(HuggingFaceExportTest, ATensorOfTheOtherTakesTheParameterThatItIsTiedTo) {
  WriteCheckpoint();
  const std::string first = "like/model-00001-of-00002.safetensors";
  // Beside the parameter's own tensor in the other folder, or instead of it.
  for (const bool has_both : {true, false}) {
    WriteLike(Dtype::kF32, R"({"tie_word_embeddings": true})");
    std::vector<TestTensor> tensors = {Zeros("lm_head.weight", Dtype::kF32, {6, 4}),
                                       Zeros("halves.weight", Dtype::kF32, {5, 2, 3}),
                                       Zeros("norm.weight", Dtype::kF32, {4})};
    if (has_both) tensors.push_back(Zeros("embed_tokens.weight", Dtype::kF32, {6, 4}));
    WriteTensors(first, tensors);
    std::map<std::string, std::string> weight_map;
    for (const TestTensor& tensor : tensors) weight_map[tensor.name] = "model-00001-of-00002.safetensors";
    for (const char* name : {"frozen.weight", "tall.weight"}) weight_map[name] = "model-00002-of-00002.safetensors";
    WriteText("like/model.safetensors.index.json", safetensors::SerializeIndex(weight_map, 1));
    fs::remove_all(Path("out"));
    ASSERT_OK(Export());
    const TestTensor head = Read("lm_head.weight");
    if (has_both) {
      EXPECT_EQ(head.bytes, Read("embed_tokens.weight").bytes);
    }
    EXPECT_NE(head.bytes, Zeros("", Dtype::kF32, {6, 4}).bytes);
    // Nothing says that it is tied.
    WriteText("like/config.json", "{}");
    fs::remove_all(Path("out"));
    EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("lm_head.weight")));
  }
}

TEST_F(HuggingFaceExportTest, TheOtherMayBeQuantizedAndHaveFilesOfAdapters) {
  WriteCheckpoint();
  WriteLike(Dtype::kBF16, R"({"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}})");
  const std::vector<TestTensor> tensors = {Zeros("frozen.weight", Dtype::kF8E4M3, {130, 8}),
                                           Zeros("frozen.weight_scale_inv", Dtype::kF32, {2, 1}),
                                           Zeros("tall.weight", Dtype::kF32, {kTallRows, kTallColumns})};
  WriteTensors("like/model-00002-of-00002.safetensors", tensors);
  std::map<std::string, std::string> weight_map;
  for (const char* name : {"embed_tokens.weight", "halves.weight", "norm.weight"}) {
    weight_map[name] = "model-00001-of-00002.safetensors";
  }
  for (const TestTensor& tensor : tensors) weight_map[tensor.name] = "model-00002-of-00002.safetensors";
  WriteText("like/model.safetensors.index.json", safetensors::SerializeIndex(weight_map, 1));
  WriteTensors("like/adapter_model.safetensors", {Zeros("lora", Dtype::kF32, {1})});
  WriteText("like/adapter_config.json", "{}");
  ASSERT_OK_AND_ASSIGN(const HuggingFaceExportReport report, Export());
  EXPECT_EQ(Read("frozen.weight").dtype, Dtype::kBF16);
  EXPECT_THAT(NamesIn("out"), testing::Not(testing::Contains("adapter_config.json")));
  EXPECT_THAT(checkpoint::ReadText(Path("out/config.json")), testing::Not(HasSubstr("quantization_config")));
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("quantization_config")));
}

TEST_F(HuggingFaceExportTest, ATargetThatIsThereIsRefused) {
  WriteCheckpoint();
  WriteLike();
  fs::create_directories(Path("out"));
  EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(Path("out"))));
  EXPECT_THAT(NamesIn("out"), IsEmpty());
}

TEST_F(HuggingFaceExportTest, ADamagedRowLeavesNothing) {
  WriteCheckpoint();
  WriteLike();
  const std::string file = checkpoint_ + "/rank-00001-of-00003.safetensors";
  std::string bytes = checkpoint::ReadText(file);
  const size_t header = 8 + static_cast<size_t>(*reinterpret_cast<const uint64_t*>(bytes.data()));
  for (size_t i = header; i < bytes.size(); i += 1000) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  checkpoint::WriteText(file, bytes);
  EXPECT_THAT(Export(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank-00001-of-00003.safetensors")));
  EXPECT_THAT(NamesIn("."), UnorderedElementsAre("like", "saves"));
}

TEST_F(HuggingFaceExportTest, TheCommandFindsCheckpointsAsTheirListNamesThem) {
  WriteCheckpoint();
  WriteLike();
  const std::string name = fs::path(checkpoint_).filename();
  const std::vector<std::vector<std::string>> ways = {{checkpoint_},
                                                      {"12", "--dir", Path("saves")},
                                                      {"latest", "--dir", Path("saves")},
                                                      {name, "--dir", Path("saves")}};
  for (std::vector<std::string> arguments : ways) {
    const std::string out = Path("out-" + arguments[0].substr(arguments[0].size() - 2));
    arguments.insert(arguments.begin(), {"-o", "json", "export"});
    for (const std::string& more : {std::string("--format=hf"), "--like=" + Path("like"), "--out=" + out}) {
      arguments.push_back(more);
    }
    const Result result = RunArguments(arguments);
    EXPECT_EQ(result.exit_code, kSucceeded) << result.err;
    EXPECT_EQ(nlohmann::json::parse(result.out)["tensorCount"], "5");
    fs::remove_all(out);
  }
  EXPECT_EQ(RunArguments({"export", "13", "--dir", Path("saves"), "--format=hf", "--like=" + Path("like"),
                          "--out=" + Path("out")})
                .exit_code,
            kFailed);
  EXPECT_EQ(RunArguments({"export", "12", "--format=onnx", "--like=l", "--out=o"}).exit_code, kUsage);
}

std::string Python() {
  const char* const python = std::getenv("PARAMSHARD_TEST_PYTHON");
  return python == nullptr ? PARAMSHARD_PYTHON : python;
}

class HuggingFaceInteropTest : public HuggingFaceExportTest, public testing::WithParamInterface<const char*> {
 protected:
  // Runs a step of the script, which makes and checks a model with transformers.
  int Run(const std::string& step) const {
    const int status = std::system(absl::StrCat("'", Python(), "' ", PARAMSHARD_SOURCE_DIR,
                                                "/tests/client/ctl/hugging_face_interop.py ", GetParam(), " ", step,
                                                " ", Path("like"), " ", Path("out"), " ", Path("expected.json"))
                                       .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // The model that the script has described: names and shapes. Masters are numbers.
  SavedModel ModelOfTheScript() const {
    ModelSpec spec{.name = "scripted"};
    UnitSpec unit{.name = "all"};
    const nlohmann::json shapes = nlohmann::json::parse(checkpoint::ReadText(Path("expected.json")));
    for (const auto& [name, shape] : shapes.items()) {
      unit.parameters.push_back(Parameter(name, shape.get<std::vector<int64_t>>()));
    }
    spec.units = {unit};
    const SavedModel random(checkpoint::Checked(spec), 7);
    SavedModel::Arrays arrays = random.arrays();
    for (const ParameterSpec& parameter : random.spec().units[0].parameters) {
      arrays.at("master/" + parameter.name) = safetensors::BytesOf(Values(parameter.rows() * parameter.columns()));
    }
    return SavedModel(random.spec(), std::move(arrays), random.common());
  }
};

TEST_P(HuggingFaceInteropTest, OpensWhatWasExported) {
  if (Python().empty()) GTEST_SKIP() << "there is no Python";
  const int made = Run("make");
  if (made == kNotInstalled) GTEST_SKIP() << Python() << " has no " << GetParam() << ", or no torch";
  ASSERT_EQ(made, 0);
  checkpoint_ = ModelOfTheScript().Write(Path("saves"), {.world = {2, 2}, .history = 1});
  ASSERT_OK(Export());
  EXPECT_EQ(Run("check"), 0);
}

INSTANTIATE_TEST_SUITE_P(Packages, HuggingFaceInteropTest, testing::Values("safetensors", "transformers"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace paramshard::ctl
