#include "client/ctl/command_line.h"

#include <sstream>
#include <string>
#include <vector>

#include "client/ctl/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::ctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Parse {
  explicit Parse(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"paramshardctl"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out_stream, err_stream;
    ended = ParseCommandLine(static_cast<int>(argv.size()), argv.data(), line, out_stream, err_stream);
    out = out_stream.str();
    err = err_stream.str();
  }

  CommandLine line;
  std::optional<int> ended;
  std::string out;
  std::string err;
};

CommandLine ParseOk(const std::vector<std::string>& arguments) {
  const Parse parse(arguments);
  EXPECT_FALSE(parse.ended.has_value()) << parse.err;
  return parse.line;
}

TEST(CommandLineTest, EveryCommandIsFoundByItsName) {
  const std::pair<Command, std::vector<std::string>> cases[] = {
      {Command::kModels, {"models"}},
      {Command::kShards, {"shards", "m"}},
      {Command::kDescribe, {"describe", "m", "p"}},
      {Command::kStats, {"stats", "m"}},
      {Command::kSessions, {"sessions"}},
      {Command::kMemory, {"memory"}},
      {Command::kVerify, {"verify", "m"}},
      {Command::kDrain, {"drain"}},
      {Command::kVersion, {"version"}},
      {Command::kCodecEncode, {"codec", "encode", "--format=MXFP8", "in.npy", "out"}},
      {Command::kCodecDecode, {"codec", "decode", "--format=MXFP8", "in", "out.npy"}},
      {Command::kConvert, {"convert", "--format=MXFP8", "in", "-o", "out"}},
      {Command::kImport, {"import", "m", "in"}},
  };
  for (const auto& [command, arguments] : cases) {
    EXPECT_EQ(ParseOk(arguments).command, command);
    EXPECT_THAT(CommandName(command), StartsWith(arguments.front()));
  }
}

TEST(CommandLineTest, GlobalOptionsMayStandBeforeOrAfterTheCommand) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"-o", "json", "--timeout=2m", "--socket-dir", "d", "models"},
        std::vector<std::string>{"models", "-o", "json", "--timeout=2m", "--socket-dir", "d"}}) {
    const CommandLine line = ParseOk(arguments);
    EXPECT_EQ(line.output, Output::kJson);
    EXPECT_EQ(line.timeout, absl::Minutes(2));
    EXPECT_EQ(line.socket_dir, "d");
  }
}

TEST(CommandLineTest, DefaultsAreTableAndTheDaemonsPageSize) {
  const CommandLine line = ParseOk({"shards", "m"});
  EXPECT_EQ(line.output, Output::kTable);
  EXPECT_EQ(line.page_size, 0);
  EXPECT_FALSE(line.timeout.has_value());
  EXPECT_THAT(line.socket_dir, IsEmpty());
}

TEST(CommandLineTest, EncodingIsRead) {
  CommandLine line = ParseOk({"codec", "encode", "--format", "FP8_BLOCK_128X128", "--element", "E5M2",
                              "--power-of-two-scales=false", "in.npy", "out"});
  EXPECT_EQ(line.encoding, (Encoding{Format::kFP8Block128x128, ElementType::kE5M2, false}));
  EXPECT_EQ(line.input, "in.npy");
  EXPECT_EQ(line.output_path, "out");
  line = ParseOk({"codec", "encode", "--format", "FP8_BLOCK_128X128", "in.npy", "out"});
  EXPECT_EQ(line.encoding, (Encoding{Format::kFP8Block128x128, ElementType::kE4M3, true}));
  line = ParseOk({"codec", "encode", "--format", "NVFP4_2D", "in.npy", "out"});
  EXPECT_EQ(line.encoding.element, ElementType::kE2M1);
  line = ParseOk({"codec", "encode", "--format", "FP8_TENSOR_CURRENT", "in.npy", "out"});
  EXPECT_EQ(line.encoding, (Encoding{Format::kFP8TensorCurrent, ElementType::kE4M3, false}));
  EXPECT_EQ(line.delayed_scale, 1.0f);
  line = ParseOk({"codec", "encode", "--format", "FP8_TENSOR_DELAYED", "--scale", "0.3", "in.npy", "out"});
  EXPECT_EQ(line.delayed_scale, 0.3f);
  line = ParseOk({"codec", "decode", "--format", "NVFP4_2D", "--columns", "77", "in", "out.npy"});
  EXPECT_EQ(line.columns, 77);
  line = ParseOk({"codec", "decode", "--format", "MXFP8", "--plane", "column", "in", "out.npy"});
  EXPECT_EQ(line.plane, Plane::kColumnWise);
}

TEST(CommandLineTest, ConversionIsRead) {
  CommandLine line = ParseOk({"convert", "in", "--format=MXFP8", "--planes=both", "--rules=r", "-o", "out"});
  EXPECT_EQ(line.conversion.input, "in");
  EXPECT_EQ(line.conversion.output, "out");
  EXPECT_EQ(line.conversion.rules_path, "r");
  EXPECT_EQ(line.conversion.encoding, (Encoding{Format::kMXFP8, ElementType::kE4M3, true}));
  EXPECT_TRUE(line.conversion.has_columns);
  EXPECT_FALSE(line.conversion.dequantized_format.has_value());
  EXPECT_EQ(line.output, Output::kTable);
  line = ParseOk({"convert", "in", "--rules=r", "-o", "out", "--report=json"});
  EXPECT_FALSE(line.conversion.encoding.has_value());
  EXPECT_EQ(line.output, Output::kJson);
  line = ParseOk({"-o", "json", "convert", "in", "--format=FP8_TENSOR_CURRENT", "-o", "out"});
  EXPECT_EQ(line.conversion.output, "out");
  EXPECT_FALSE(line.conversion.encoding->power_of_two_scales);
  EXPECT_EQ(line.output, Output::kJson);
  EXPECT_EQ(ParseOk({"convert", "in", "--dequantize", "-o", "out"}).conversion.dequantized_format, Format::kFP32);
  line = ParseOk({"convert", "in", "--dequantize", "--dtype=F16", "--progress", "-o", "out"});
  EXPECT_EQ(line.conversion.dequantized_format, Format::kFP16);
  EXPECT_TRUE(line.progress);
}

TEST(CommandLineTest, WhatIsWrongIsSaidOnStandardError) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "A command of paramshardctl is required"},
      {{"nodels"}, "nodels"},
      {{"codec"}, "A command of codec is required"},
      {{"codec", "recode"}, "recode"},
      {{"models", "extra"}, "extra"},
      {{"models", "sessions"}, "sessions"},
      {{"models", "--format=x"}, "--format"},
      {{"shards"}, "model is required"},
      {{"describe", "m"}, "parameter is required"},
      {{"shards", "m", "--page-size=0"}, "not in range"},
      {{"shards", "m", "--page-size=10001"}, "not in range"},
      {{"stats", "m", "--limit=0"}, "not in range"},
      {{"models", "-o", "xml"}, "table or json expected, got xml"},
      {{"models", "--timeout", "3"}, "a positive duration"},
      {{"models", "--timeout", "-3s"}, "a positive duration"},
      {{"codec", "encode", "in.npy", "out"}, "--format is required"},
      {{"codec", "encode", "--format", "FP7", "in.npy", "out"}, "unknown format \"FP7\""},
      {{"codec", "encode", "--format", "MXFP8", "--element", "E9M9", "in.npy", "out"}, "unknown element type"},
      {{"codec", "encode", "--format", "MXFP8", "--power-of-two-scales=maybe", "in.npy", "out"}, "maybe"},
      {{"codec", "encode", "--format", "MXFP8", "--scale=2", "in.npy", "out"},
       "FP8_TENSOR_DELAYED expected, got MXFP8"},
      {{"codec", "encode", "--format", "FP8_TENSOR_DELAYED", "--scale=-2", "in.npy", "out"}, "--scale"},
      {{"codec", "encode", "--format", "FP8_TENSOR_DELAYED", "--scale=inf", "in.npy", "out"}, "--scale"},
      {{"codec", "decode", "--format", "NVFP4_2D", "--columns=0", "in", "out.npy"}, "--columns"},
      {{"codec", "decode", "--format", "MXFP8", "--plane", "up", "in", "out"}, "row or column expected, got up"},
      {{"codec", "encode", "--format", "MXFP8", "in.npy"}, "output is required"},
      {{"convert", "in", "-o", "out"}, "--format, --rules or --dequantize is required"},
      {{"convert", "in", "--format=MXFP8"}, "--output is required"},
      {{"convert", "in", "-o", "out", "--dequantize", "--format=MXFP8"}, "excludes"},
      {{"convert", "in", "-o", "out", "--format=MXFP8", "--dtype=F32"}, "requires --dequantize"},
      {{"convert", "in", "-o", "out", "--dequantize", "--dtype=F64"}, "F32, BF16 or F16 expected, got F64"},
      {{"convert", "in", "-o", "out", "--format=MXFP8", "--planes=column"}, "row or both expected, got column"},
      {{"import", "m"}, "path is required"},
  };
  for (const auto& [arguments, message] : cases) {
    const Parse parse(arguments);
    ASSERT_EQ(parse.ended, kUsage) << message;
    EXPECT_THAT(parse.out, IsEmpty());
    EXPECT_THAT(parse.err, AllOf(StartsWith("paramshardctl: "), HasSubstr(message), HasSubstr("--help")));
  }
}

TEST(CommandLineTest, HelpAndVersionEndWell) {
  EXPECT_EQ(Parse({"--help"}).ended, kSucceeded);
  EXPECT_THAT(Parse({"--help"}).out, AllOf(HasSubstr("models"), HasSubstr("codec"), HasSubstr("--socket-dir")));
  EXPECT_THAT(Parse({"codec", "encode", "--help"}).out, HasSubstr("--power-of-two-scales"));
  EXPECT_EQ(Parse({"--version"}).ended, kSucceeded);
  EXPECT_THAT(Parse({"--version"}).out, StartsWith("paramshardctl "));
}

}  // namespace
}  // namespace paramshard::ctl
