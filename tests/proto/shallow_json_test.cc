#include "proto/safetensors/shallow_json.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::safetensors {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::Pair;

TEST(ShallowJsonTest, AValueIsWhatTheParserMakesOfIt) {
  for (const char* const text :
       {R"({})", R"([])", R"(7)", R"("x")", R"({"a": [1, -2, 3.5, true, null, "x"], "b": {"c": []}, "": {}})",
        R"([[], {}, [[1]], {"a": 1, "a": 2}])", R"({"n": 18446744073709551615, "m": -9223372036854775808})"}) {
    EXPECT_EQ(ParseShallowJson(text, 5), json::parse(text)) << text;
  }
}

TEST(ShallowJsonTest, WhatIsDeeperIsLeftOut) {
  EXPECT_EQ(ParseShallowJson(R"({"a": {"b": {"c": 1}, "d": [2], "e": 3}, "f": 4})", 2),
            json::parse(R"({"a": {"b": {}, "d": [], "e": 3}, "f": 4})"));
  EXPECT_EQ(ParseShallowJson(R"([[[1], 2], 3])", 1), json::parse("[[], 3]"));
  const std::string deep = absl::StrCat(std::string(100'000, '['), std::string(100'000, ']'));
  EXPECT_EQ(ParseShallowJson(deep, 3), json::parse("[[[[]]]]"));
}

TEST(ShallowJsonTest, OtherTextsAreDiscarded) {
  for (const char* const text : {"", "{", "[1,]", "{\"a\"}", "[1] x", "{\"a\": [[[}", "nul"}) {
    EXPECT_TRUE(ParseShallowJson(text, 2).is_discarded()) << text;
  }
}

TEST(ShallowJsonTest, KeysAreHeardInTheOrderOfTheTextEachTime) {
  std::vector<std::pair<int, std::string>> keys;
  ParseShallowJson(R"({"b": {"x": {"deep": 1}, "x": 2}, "a": [{"y": 0}]})", 3,
                   [&](int depth, const std::string& key) { keys.emplace_back(depth, key); });
  EXPECT_THAT(keys, ElementsAre(Pair(1, "b"), Pair(2, "x"), Pair(3, "deep"), Pair(2, "x"), Pair(1, "a"), Pair(3, "y")));
}

}  // namespace
}  // namespace paramshard::safetensors
