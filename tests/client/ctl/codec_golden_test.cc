// The program itself against the golden cases, byte for byte.

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/npy.h"
#include "gtest/gtest.h"
#include "kernels/formats/format.h"
#include "tests/kernels/golden.h"
#include "tests/support/temporary_directory.h"

namespace paramshard {
namespace {

// Runs paramshardctl and returns its exit code, or -1.
int RunProgram(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), PARAMSHARDCTL_PATH);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawn(&pid, PARAMSHARDCTL_PATH, nullptr, nullptr, argv.data(), environ) != 0) return -1;
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<std::string> EncodingFlags(const GoldenCase& golden, const Encoding& encoding) {
  std::vector<std::string> flags = {"--format", std::string(FormatName(encoding.format)), "--element",
                                    std::string(ElementTypeName(encoding.element))};
  const nlohmann::json& options = golden.options();
  if (options.contains("pow2"))
    flags.push_back(options.at("pow2") ? "--power-of-two-scales=true" : "--power-of-two-scales=false");
  if (options.contains("scale")) flags.push_back(absl::StrFormat("--scale=%.9g", options.at("scale").get<float>()));
  return flags;
}

class CodecGoldenTest : public testing::Test {
 protected:
  std::string WriteInput(const GoldenCase& golden) const {
    const std::string path = directory_.path() + "/input.npy";
    EXPECT_TRUE(WriteNpy(path, {"<f4", {golden.rows(), golden.cols()}, golden.Bytes("input")}).ok());
    return path;
  }

  // Expects a file for this role if and only if the case has one, with the same contents.
  void ExpectRole(const GoldenCase& golden, const std::string& output, const std::string& role) const {
    SCOPED_TRACE(role);
    const std::string path = output + "/" + role + ".npy";
    ASSERT_EQ(std::filesystem::exists(path), golden.Has(role));
    if (!golden.Has(role)) return;
    const absl::StatusOr<NpyArray> array = ReadNpy(path);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->shape, ExpectedShape(golden, role));
    EXPECT_TRUE(SameBytes(golden.Bytes(role), array->bytes));
  }

  static std::vector<int64_t> ExpectedShape(const GoldenCase& golden, const std::string& role) {
    const Format format = golden.encoding().format;
    const bool is_packed = format == Format::kNVFP4_2D;
    if (role == "row_data" && is_packed) return {golden.rows(), (golden.cols() + 1) / 2};
    if (role == "row_data" || role == "col_data") return {golden.rows(), golden.cols()};
    if (role == "amax" || (NeedsAmax(format) && !is_packed)) return {1};
    const Plane plane = role == "col_scale" ? Plane::kColumnWise : Plane::kRowWise;
    const MatrixShape scales = ScaleShape(golden.encoding(), plane, golden.rows(), golden.cols());
    return {scales.rows, scales.cols};
  }

  void ExpectDequantized(const GoldenCase& golden, const std::string& output) const {
    const absl::StatusOr<NpyArray> array = ReadNpy(output + "/dequantized.npy");
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->shape, (std::vector<int64_t>{golden.rows(), golden.cols()}));
    if (!golden.Has("dequantized")) return;  // of large inputs
    EXPECT_TRUE(SameBytes(golden.Bytes("dequantized"), array->bytes));
  }

  const test::TemporaryDirectory directory_;
};

TEST_F(CodecGoldenTest, EncodeGivesTheGoldenBytes) {
  int encoded = 0;
  for (const GoldenCase& golden : GoldenCases("quantize")) {
    const Encoding encoding = golden.encoding();
    SCOPED_TRACE(golden.name());
    const std::string output = directory_.path() + "/" + golden.name();
    std::vector<std::string> arguments = {"codec", "encode", WriteInput(golden), output};
    for (const std::string& flag : EncodingFlags(golden, encoding)) arguments.push_back(flag);
    ASSERT_EQ(RunProgram(arguments), 0);
    for (const char* role : {"row_data", "row_scale", "col_data", "col_scale", "scale_inv", "amax"}) {
      ExpectRole(golden, output, role);
    }
    ExpectDequantized(golden, output);
    ++encoded;
  }
  EXPECT_EQ(encoded, 93);
}

TEST_F(CodecGoldenTest, DecodeGivesTheGoldenValues) {
  int decoded = 0;
  for (const GoldenCase& golden : GoldenCases("quantize")) {
    for (const auto& [plane, role] : {std::pair("row", "dequantized"), std::pair("column", "dequantized_columns")}) {
      if (!golden.Has(role)) continue;
      SCOPED_TRACE(golden.name());
      const Encoding encoding = golden.encoding();
      const std::string planes = directory_.path() + "/" + golden.name();
      std::vector<std::string> encode = {"codec", "encode", WriteInput(golden), planes};
      for (const std::string& flag : EncodingFlags(golden, encoding)) encode.push_back(flag);
      ASSERT_EQ(RunProgram(encode), 0);
      const std::string values = planes + ".npy";
      ASSERT_EQ(RunProgram({"codec", "decode", "--plane", plane, "--columns", absl::StrCat(golden.cols()), "--format",
                            std::string(FormatName(encoding.format)), "--element",
                            std::string(ElementTypeName(encoding.element)), planes, values}),
                0);
      const absl::StatusOr<NpyArray> array = ReadNpy(values);
      ASSERT_TRUE(array.ok()) << array.status();
      EXPECT_TRUE(SameBytes(golden.Bytes(role), array->bytes)) << role;
      ++decoded;
    }
  }
  EXPECT_GT(decoded, 60);
}

TEST_F(CodecGoldenTest, ExitCodesAreThoseOfTheHeader) {
  const std::string missing = directory_.path() + "/none.npy";
  EXPECT_EQ(RunProgram({"codec", "encode", "--format=MXFP8", missing, directory_.path() + "/out"}), 1);
  EXPECT_EQ(RunProgram({"codec", "encode", "--format=MXFP8", "--element=E2M1", missing, directory_.path() + "/out"}),
            1);
  EXPECT_EQ(RunProgram({"codec", "encode", "--format=FP17", missing, directory_.path() + "/out"}), 2);
  EXPECT_EQ(RunProgram({"models", "--socket-dir", directory_.path()}), 3);
}

}  // namespace
}  // namespace paramshard
