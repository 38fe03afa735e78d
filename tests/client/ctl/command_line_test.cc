#include "client/ctl/command_line.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/ctl/commands.h"
#include "client/ctl/exit_codes.h"
#include "client/ctl/options.h"
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

GlobalOptions OptionsOf(const std::vector<std::string>& arguments) {
  const Parse parse(arguments);
  EXPECT_FALSE(parse.ended.has_value()) << parse.err;
  return parse.line.options;
}

TEST(CommandLineTest, EveryCommandIsFoundByItsName) {
  const std::map<std::string, std::vector<std::string>> arguments = {
      {"shards", {"m"}},
      {"describe", {"m", "p"}},
      {"stats", {"m"}},
      {"verify", {"m"}},
      {"codec encode", {"in.npy", "out", "--format=MXFP8"}},
      {"codec decode", {"in", "out.npy", "--format=MXFP8"}},
      {"convert", {"in", "--format=MXFP8", "-o", "out"}},
      {"import", {"m", "in"}},
      {"export", {"in", "--format=hf", "--like=like", "--out=out"}},
      {"delete", {"m"}},
      {"log-level", {"debug"}},
      {"bundle", {"d"}},
      {"save", {"m"}},
      {"saves", {"m"}},
      {"restore", {"m"}},
      {"heal", {"m", "--from=0"}},
      {"mirror activate", {"m", "1200"}},
      {"checkpoint verify", {"in"}},
      {"checkpoint list", {"in"}},
      {"checkpoint describe", {"in"}},
  };
  for (const CommandInfo* info : Commands()) {
    std::vector<std::string> words = absl::StrSplit(info->name, ' ');
    const auto more = arguments.find(info->name);
    if (more != arguments.end()) words.insert(words.end(), more->second.begin(), more->second.end());
    const Parse parse(words);
    ASSERT_FALSE(parse.ended.has_value()) << info->name << ": " << parse.err;
    EXPECT_EQ(parse.line.info, info);
    ASSERT_NE(parse.line.command, nullptr) << info->name;
    const std::vector<std::string> objects = parse.line.command->Objects();
    EXPECT_EQ(objects.empty(), more == arguments.end()) << info->name;
    if (more != arguments.end()) {
      EXPECT_EQ(objects.front(), more->second.front());
    }
    EXPECT_STRNE(info->help, "") << info->name;
  }
}

TEST(CommandLineTest, TheHelpHasCommandsInSections) {
  const std::string help = Parse({"--help"}).out;
  size_t next = help.find("\n\n");
  for (const CommandSection& section : CommandSections()) {
    const size_t begin = help.find(absl::StrCat("\n", section.heading, ":\n"), next);
    ASSERT_NE(begin, help.npos) << section.heading << ": " << help;
    next = help.find("\n\n", begin + 1);
    for (const CommandInfo* info : section.commands) {
      const std::vector<std::string> words = absl::StrSplit(info->name, ' ');
      EXPECT_THAT(help.substr(begin, next - begin), HasSubstr(absl::StrCat("\n  ", words.front(), " ")));
    }
  }
}

TEST(CommandLineTest, GlobalOptionsMayStandBeforeOrAfterTheCommand) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"-o", "json", "--timeout=2m", "--socket-dir", "d", "models"},
        std::vector<std::string>{"models", "-o", "json", "--timeout=2m", "--socket-dir", "d"}}) {
    const GlobalOptions options = OptionsOf(arguments);
    EXPECT_EQ(options.output, Output::kJson);
    EXPECT_EQ(options.timeout, absl::Minutes(2));
    EXPECT_EQ(options.socket_dir, "d");
  }
}

TEST(CommandLineTest, TheDefaultIsATable) {
  const GlobalOptions options = OptionsOf({"shards", "m"});
  EXPECT_EQ(options.output, Output::kTable);
  EXPECT_FALSE(options.timeout.has_value());
  EXPECT_THAT(options.socket_dir, IsEmpty());
}

Encoding EncodingOf(std::vector<std::string> arguments) {
  CLI::App app;
  EncodingOptions options;
  options.AddFormat(app)->required();
  options.AddPowerOfTwoScales(app);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return options.encoding();
}

TEST(CommandLineTest, WhatAnEncodingLeavesOutFollowsFromItsFormat) {
  EXPECT_EQ(EncodingOf({"--format", "FP8_BLOCK_128X128", "--element", "E5M2", "--power-of-two-scales=false"}),
            (Encoding{Format::kFP8Block128x128, ElementType::kE5M2, false}));
  EXPECT_EQ(EncodingOf({"--format", "FP8_BLOCK_128X128"}),
            (Encoding{Format::kFP8Block128x128, ElementType::kE4M3, true}));
  EXPECT_EQ(EncodingOf({"--format", "NVFP4_2D"}).element, ElementType::kE2M1);
  EXPECT_EQ(EncodingOf({"--format", "FP8_TENSOR_CURRENT"}),
            (Encoding{Format::kFP8TensorCurrent, ElementType::kE4M3, false}));
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
      {{"models", "-o", "xml"}, "want table or json, got xml"},
      {{"models", "--timeout", "3"}, "a positive duration"},
      {{"models", "--timeout", "-3s"}, "a positive duration"},
      {{"codec", "encode", "in.npy", "out"}, "--format is required"},
      {{"codec", "encode", "--format", "FP7", "in.npy", "out"}, "NVFP4_2D, got \"FP7\""},
      {{"codec", "encode", "--format", "MXFP8", "--element", "E9M9", "in.npy", "out"}, "E2M1, got \"E9M9\""},
      {{"codec", "encode", "--format", "MXFP8", "--power-of-two-scales=maybe", "in.npy", "out"}, "maybe"},
      {{"codec", "encode", "--format", "MXFP8", "--scale=2", "in.npy", "out"},
       "want format FP8_TENSOR_DELAYED, got MXFP8"},
      {{"codec", "encode", "--format", "FP8_TENSOR_DELAYED", "--scale=-2", "in.npy", "out"}, "--scale"},
      {{"codec", "encode", "--format", "FP8_TENSOR_DELAYED", "--scale=inf", "in.npy", "out"}, "--scale"},
      {{"codec", "decode", "--format", "NVFP4_2D", "--columns=0", "in", "out.npy"}, "--columns"},
      {{"codec", "decode", "--format", "MXFP8", "--plane", "up", "in", "out"}, "want row or column, got up"},
      {{"codec", "encode", "--format", "MXFP8", "in.npy"}, "output is required"},
      {{"convert", "in", "-o", "out"}, "--format, --rules or --dequantize is required"},
      {{"convert", "in", "--format=MXFP8"}, "--output is required"},
      {{"convert", "in", "-o", "out", "--dequantize", "--format=MXFP8"}, "excludes"},
      {{"convert", "in", "-o", "out", "--format=MXFP8", "--dtype=F32"}, "requires --dequantize"},
      {{"convert", "in", "-o", "out", "--dequantize", "--dtype=F64"}, "want F32, BF16 or F16, got F64"},
      {{"convert", "in", "-o", "out", "--format=MXFP8", "--planes=column"}, "want row or both, got column"},
      {{"import", "m"}, "path is required"},
      {{"trace", "--steps=101"}, "not in range"},
      {{"bundle"}, "out is required"},
      {{"heal", "m"}, "--from is required"},
      {{"heal", "m", "--from=-1"}, "--from"},
      {{"log-level", "loud"}, "loud not in"},
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
