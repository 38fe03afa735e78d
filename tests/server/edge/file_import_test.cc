#include "server/edge/file_import.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/safetensors/checkpoint.h"
#include "common/safetensors/conversion.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "tests/common/safetensors_files.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using safetensors::BytesOf;
using safetensors::Dtype;
using safetensors::FloatTensor;
using safetensors::TestTensor;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kBigRows = 1500;
constexpr int64_t kBigColumns = 512;

// Values that are all different, and exact in bfloat16 and float16 up to 256.
std::vector<float> Ramp(int64_t count, float first = 1) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(FileImportTest, OnlyTheDaemonsUserAndRootNameFiles) {
  EXPECT_OK(CheckMayImportFile(geteuid()));
  EXPECT_OK(CheckMayImportFile(0));
  EXPECT_THAT(CheckMayImportFile(geteuid() + 1),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(absl::StrCat("got user ", geteuid() + 1))));
}

class ImportFileTest : public DaemonTestBase {
 protected:
  ImportFileTest() {
    v1::ModelSpec spec =
        MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {7, 4}), MakeParameter("b", {5})}),
                       MakeUnit("v", {MakeParameter("big", {kBigRows, kBigColumns}, v1::FORMAT_MXFP8)})});
    EXPECT_OK(client_->CreateModel(spec));
    hash_ = client_->StateHash("m");
  }

  // Writes a file of good tensors, with `changed` in place of those of the same name.
  std::string Write(const std::vector<TestTensor>& changed = {}, const safetensors::Metadata& metadata = {}) {
    std::vector<TestTensor> tensors = {FloatTensor("w", {7, 4}, Ramp(28)), FloatTensor("b", {5}, Ramp(5, 100)),
                                       FloatTensor("big", {kBigRows, kBigColumns}, Ramp(kBigRows * kBigColumns))};
    for (const TestTensor& change : changed) {
      auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == change.name; });
      if (found == tensors.end()) {
        tensors.push_back(change);
      } else {
        *found = change;
      }
    }
    return WriteTensors("in.safetensors", tensors, metadata);
  }
  std::string WriteTensors(const std::string& name, const std::vector<TestTensor>& tensors,
                           const safetensors::Metadata& metadata = {}) {
    const std::string path = files_.path() + "/" + name;
    safetensors::WriteFile(path, tensors, metadata);
    return path;
  }

  static v1::ImportFileRequest Request(const std::string& path) {
    v1::ImportFileRequest request;
    request.set_model("m");
    request.set_path(path);
    return request;
  }
  static void Rename(v1::ImportFileRequest& request, const std::string& parameter, const std::string& tensor) {
    v1::ParameterTensor& pair = *request.add_tensors();
    pair.set_parameter(parameter);
    pair.set_tensor(tensor);
  }
  absl::StatusOr<v1::ImportFileResponse> Import(const v1::ImportFileRequest& request) {
    return client_->Call(client_->admin(), &v1::AdminService::Stub::ImportFile, request);
  }
  // Refused, and nothing was changed.
  void ExpectRefused(const v1::ImportFileRequest& request, absl::StatusCode code, const std::string& message) {
    EXPECT_THAT(Import(request), StatusIs(code, HasSubstr(message)));
    EXPECT_EQ(client_->StateHash("m"), hash_) << message;
  }

  // The masters of a parameter, of all ranks.
  std::vector<float> Masters(const std::string& parameter) {
    v1::ExportRequest request;
    request.set_model("m");
    request.add_parameters(parameter);
    const auto context = client_->Context();
    const auto reader = client_->trainer().Export(context.get(), request);
    std::string bytes;
    for (v1::ExportResponse response; reader->Read(&response);) bytes += response.chunk().data();
    EXPECT_TRUE(reader->Finish().ok());
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  const test::TemporaryDirectory files_;
  std::string hash_;
};

TEST_F(ImportFileTest, MastersBecomeTheFilesTensors) {
  ASSERT_OK_AND_ASSIGN(const v1::ImportFileResponse response, Import(Request(Write())));
  EXPECT_EQ(response.parameter_count(), 3);
  EXPECT_EQ(response.size_bytes(), (28 + 5 + kBigRows * kBigColumns) * 4);
  EXPECT_EQ(Masters("w"), Ramp(28));
  EXPECT_EQ(Masters("b"), Ramp(5, 100));
  EXPECT_TRUE(Masters("big") == Ramp(kBigRows * kBigColumns));
  // Planes that do not match masters are failures in it.
  EXPECT_NE(client_->StateHash("m"), hash_);
}

// A daemon that owns other rows of the same tensors has to make the same one: it goes by the whole file.
TEST_F(ImportFileTest, AFileMakesALineageOfItsContent) {
  const std::string path = Write();
  ASSERT_OK_AND_ASSIGN(const v1::ImportFileResponse first, Import(Request(path)));
  const auto again = [&](int devices, const v1::ImportFileRequest& request) {
    StartDaemon([&](DaemonConfig& config) { config.devices.resize(devices, "cpu:0"); });
    v1::ModelSpec spec =
        MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {7, 4}), MakeParameter("b", {5})}),
                       MakeUnit("v", {MakeParameter("big", {kBigRows, kBigColumns}, v1::FORMAT_MXFP8)})});
    EXPECT_OK(client_->CreateModel(spec));
    absl::StatusOr<v1::ImportFileResponse> response = Import(request);
    EXPECT_OK(response);
    return response.ok() ? *response : v1::ImportFileResponse();
  };
  const v1::ImportFileResponse second = again(1, Request(path));
  EXPECT_EQ(second.lineage(), first.lineage());
  EXPECT_NE(second.history_id(), first.history_id()) << "it is another model";
  std::vector<float> other = Ramp(kBigRows * kBigColumns);
  other.back() = 0;
  EXPECT_NE(again(1, Request(Write({FloatTensor("big", {kBigRows, kBigColumns}, other)}))).lineage(), first.lineage());
  v1::ImportFileRequest named = Request(Write());
  named.set_history_id("00000000000000000000000000000007");
  EXPECT_EQ(again(2, named).history_id(), named.history_id());
  EXPECT_TRUE(Masters("big") == Ramp(kBigRows * kBigColumns)) << "its own rows are all that it reads";
}

TEST_F(ImportFileTest, HalvesAreDecoded) {
  std::vector<uint16_t> brain;
  for (const float value : Ramp(28)) brain.push_back(EncodeBFloat16(value));
  const std::vector<uint16_t> half = {0x3c00, 0x4000, 0xc200, 0x0001, 0x7bff};  // 1, 2, -3, 2^-24, 65504
  ASSERT_OK(
      Import(Request(Write({{"w", Dtype::kBF16, {7, 4}, BytesOf(brain)}, {"b", Dtype::kF16, {5}, BytesOf(half)}}))));
  EXPECT_EQ(Masters("w"), Ramp(28));
  EXPECT_THAT(Masters("b"), ElementsAre(1, 2, -3, 0x1p-24f, 65504));
}

TEST_F(ImportFileTest, AnIndexIsRead) {
  WriteTensors("one.safetensors", {FloatTensor("w", {7, 4}, Ramp(28)), FloatTensor("b", {5}, Ramp(5))});
  WriteTensors("two.safetensors", {FloatTensor("big", {kBigRows, kBigColumns}, Ramp(kBigRows * kBigColumns, 7))});
  const std::string index =
      safetensors::SerializeIndex({{"w", "one.safetensors"}, {"b", "one.safetensors"}, {"big", "two.safetensors"}}, 0);
  std::ofstream(files_.path() + "/model.safetensors.index.json") << index;
  ASSERT_OK(Import(Request(files_.path())));
  EXPECT_EQ(Masters("b"), Ramp(5));
  EXPECT_TRUE(Masters("big") == Ramp(kBigRows * kBigColumns, 7));
}

TEST_F(ImportFileTest, ShardsOfTorchAreReadAsOne) {
  const std::vector<float> big = Ramp(kBigRows * kBigColumns, 7);
  const auto half = big.begin() + kBigRows / 2 * kBigColumns;
  const std::vector<float> w = Ramp(28);
  WriteTensors(
      "shard-00001-model-00001-of-00001.safetensors",
      {FloatTensor("w", {3, 4}, {w.begin(), w.begin() + 12}), FloatTensor("b", {5}, Ramp(5)),
       FloatTensor("big", {kBigRows / 2, kBigColumns}, {big.begin(), half})},
      {{"DCP_SHARDING_INFO",
        R"({"w": {"saved_offsets": [0, 0]}, "b": {"saved_offsets": [0]}, "big": {"saved_offsets": [0, 0]}})"}});
  WriteTensors("shard-00002-model-00001-of-00001.safetensors",
               {FloatTensor("w", {4, 4}, {w.begin() + 12, w.end()}),
                FloatTensor("big", {kBigRows - kBigRows / 2, kBigColumns}, {half, big.end()})},
               {{"DCP_SHARDING_INFO", absl::StrCat(R"({"w": {"saved_offsets": [3, 0]}, "big": {"saved_offsets": [)",
                                                   kBigRows / 2, ", 0]}}")}});
  ASSERT_OK(Import(Request(files_.path())));
  EXPECT_EQ(Masters("w"), w);
  EXPECT_EQ(Masters("b"), Ramp(5));
  EXPECT_TRUE(Masters("big") == big);
}

TEST_F(ImportFileTest, NamesMayBeMapped) {
  const std::string path =
      WriteTensors("in.safetensors", {FloatTensor("model.w", {7, 4}, Ramp(28)),
                                      FloatTensor("b", {5}, Ramp(5)),
                                      FloatTensor("big", {kBigRows, kBigColumns}, Ramp(kBigRows * kBigColumns)),
                                      {"step", Dtype::kI64, {}, BytesOf<int64_t>({1})}});
  v1::ImportFileRequest request = Request(path);
  ExpectRefused(request, absl::StatusCode::kNotFound, "the files have model.w");
  Rename(request, "w", "model.w");
  ASSERT_OK_AND_ASSIGN(const v1::ImportFileResponse warned, Import(request));
  EXPECT_THAT(warned.warnings(), ElementsAre(HasSubstr("step")));
  EXPECT_EQ(Masters("w"), Ramp(28));
  request.add_ignored_tensors("step");
  ASSERT_OK_AND_ASSIGN(const v1::ImportFileResponse silent, Import(request));
  EXPECT_THAT(silent.warnings(), IsEmpty());
}

TEST_F(ImportFileTest, AParameterIsMappedOnce) {
  v1::ImportFileRequest request = Request(Write());
  Rename(request, "w", "w");
  Rename(request, "b", "b");
  Rename(request, "w", "w");
  ExpectRefused(request, kInvalid, "tensors: duplicate parameter w");
  request.mutable_tensors()->RemoveLast();
  EXPECT_OK(Import(request));
}

TEST_F(ImportFileTest, MissingParametersAreNamedAndStayWhenPartial) {
  v1::ImportFileRequest request = Request(WriteTensors("in.safetensors", {FloatTensor("b", {5}, Ramp(5))}));
  const std::vector<float> before = Masters("w");
  ExpectRefused(request, absl::StatusCode::kNotFound, "w, big");
  request.set_partial(true);
  ASSERT_OK_AND_ASSIGN(const v1::ImportFileResponse response, Import(request));
  EXPECT_THAT(response.missing_parameters(), ElementsAre("w", "big"));
  EXPECT_EQ(response.parameter_count(), 1);
  EXPECT_EQ(Masters("b"), Ramp(5));
  EXPECT_EQ(Masters("w"), before);
}

TEST_F(ImportFileTest, ATensorThatIsLeftOutIsOfNoParameter) {
  v1::ImportFileRequest request = Request(Write());
  request.add_ignored_tensors("b");
  ExpectRefused(request, absl::StatusCode::kNotFound, "no tensor for b of m; name the tensor");
  v1::ImportFileRequest both = request;
  Rename(both, "b", "b");
  ExpectRefused(both, kInvalid, "tensor b is left out");
  request.set_partial(true);
  const std::vector<float> before = Masters("b");
  ASSERT_OK_AND_ASSIGN(const v1::ImportFileResponse response, Import(request));
  EXPECT_THAT(response.missing_parameters(), ElementsAre("b"));
  EXPECT_EQ(Masters("b"), before);
}

TEST_F(ImportFileTest, NamesOfWrappersAreNamedAndFillNothing) {
  v1::ImportFileRequest request = Request(WriteTensors(
      "in.safetensors", {FloatTensor("module.w", {7, 4}, Ramp(28)), FloatTensor("module.b", {5}, Ramp(5))}));
  ExpectRefused(request, absl::StatusCode::kNotFound, "module.w");
  request.set_partial(true);
  ExpectRefused(request, absl::StatusCode::kNotFound, "module.w");
  // A tensor that nothing takes beside a parameter that lacks one.
  request = Request(
      WriteTensors("in.safetensors", {FloatTensor("w", {7, 4}, Ramp(28)), FloatTensor("module.b", {5}, Ramp(5))}));
  request.set_partial(true);
  ExpectRefused(request, kInvalid, "module.b");
}

TEST_F(ImportFileTest, TensorsThatNothingTakesAreWarnedOf) {
  ASSERT_OK_AND_ASSIGN(const v1::ImportFileResponse response, Import(Request(Write({FloatTensor("x", {1}, {1})}))));
  EXPECT_THAT(response.warnings(), ElementsAre(HasSubstr("x")));
  EXPECT_EQ(Masters("b"), Ramp(5, 100));
}

TEST_F(ImportFileTest, QuantizedTensorsAreDecoded) {
  const std::vector<uint8_t> ones(28, 0x38);  // 1 in E4M3
  const TestTensor codes = {"w", Dtype::kF8E4M3, {7, 4}, ones};
  ASSERT_OK_AND_ASSIGN(const v1::ImportFileResponse response,
                       Import(Request(Write({codes, FloatTensor("w_scale", {7, 1}, Ramp(7))}))));
  EXPECT_THAT(response.warnings(), ElementsAre(AllOf(HasSubstr("decoded"), HasSubstr("w"))));
  std::vector<float> want;
  for (int i = 0; i < 28; ++i) want.push_back(static_cast<float>(i / 4 + 1));
  EXPECT_EQ(Masters("w"), want);
}

TEST_F(ImportFileTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  ExpectRefused(Request(Write({FloatTensor("w", {4, 7}, Ramp(28))})), kInvalid,
                "tensor w: want shape [7, 4] for w, got [4, 7]");
  ExpectRefused(Request(Write({FloatTensor("w", {28}, Ramp(28))})), kInvalid, "got [28]");
  for (const auto& [dtype, bytes] : {std::pair(Dtype::kF8E4M3, 28), {Dtype::kU8, 28}, {Dtype::kF64, 28 * 8}}) {
    ExpectRefused(Request(Write({{"w", dtype, {7, 4}, std::vector<uint8_t>(bytes)}})), kInvalid,
                  absl::StrCat("got ", safetensors::DtypeName(dtype)));
  }
  ExpectRefused(Request(Write({}, {{safetensors::kEncodingsKey, "[]"}})), kInvalid, "encodings");
}

TEST_F(ImportFileTest, NamesInTheRequestAreThere) {
  v1::ImportFileRequest request = Request(Write());
  request.set_model("n");
  ExpectRefused(request, absl::StatusCode::kNotFound, "n");
  request = Request(Write());
  Rename(request, "x", "w");
  ExpectRefused(request, absl::StatusCode::kNotFound, "no parameter of m is named x");
  request = Request(Write());
  Rename(request, "w", "x");
  ExpectRefused(request, absl::StatusCode::kNotFound, "no tensor is named x");
  request = Request(Write());
  request.add_ignored_tensors("x");
  ExpectRefused(request, absl::StatusCode::kNotFound, "no tensor is named x");
}

TEST_F(ImportFileTest, ThePathIsAbsoluteAndAGoodFile) {
  ExpectRefused(Request("in.safetensors"), kInvalid, "want an absolute path");
  ExpectRefused(Request(""), kInvalid, "want an absolute path");
  ExpectRefused(Request(files_.path() + "/none"), absl::StatusCode::kNotFound, "none");
  const std::string path = Write();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  ExpectRefused(Request(path), absl::StatusCode::kDataLoss, "in.safetensors");
}

TEST_F(ImportFileTest, AnAttachedTrainerKeepsItOut) {
  const std::string path = Write();
  TestSession session(socket_dir());
  session.Attach(MakeAttach("m", 0));
  ASSERT_TRUE(session.Read().has_accepted());
  ExpectRefused(Request(path), absl::StatusCode::kFailedPrecondition, "rank 0 is attached (process ");
}

}  // namespace
}  // namespace paramshard::server
