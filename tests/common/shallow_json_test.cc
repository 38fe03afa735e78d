#include "common/safetensors/shallow_json.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::safetensors {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::FieldsAre;

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

TEST(ShallowJsonTest, EachMemberIsOfferedAsItEnds) {
  std::vector<std::tuple<int, std::string, std::string>> members;
  ParseShallowJson(R"({"b": {"x": {"deep": 1}, "x": 2}, "a": [{"y": 0}, 1], "c": {"z": {}}})", 3,
                   [&](const JsonMember& member) {
                     members.emplace_back(member.depth, member.object, member.name);
                     return false;
                   });
  EXPECT_THAT(members, ElementsAre(FieldsAre(3, "x", "deep"), FieldsAre(2, "b", "x"), FieldsAre(2, "b", "x"),
                                   FieldsAre(1, "", "b"), FieldsAre(3, "", "y"), FieldsAre(1, "", "a"),
                                   FieldsAre(2, "c", "z"), FieldsAre(1, "", "c")));
}

TEST(ShallowJsonTest, WhatIsTakenIsLeftOut) {
  std::vector<json> taken;
  const json left = ParseShallowJson(R"({"a": 1, "many": {"b": {"c": [1]}, "d": 2}, "e": {"b": 3}})", 4,
                                     [&](const JsonMember& member) {
                                       if (member.depth != 2 || member.object != "many") return false;
                                       taken.push_back(member.value);
                                       return true;
                                     });
  EXPECT_EQ(left, json::parse(R"({"a": 1, "many": {}, "e": {"b": 3}})"));
  EXPECT_THAT(taken, ElementsAre(json::parse(R"({"c": [1]})"), json(2)));
}

TEST(JsonTextTest, TextsAreAsTheLibraryWritesThem) {
  for (const std::string text : {"", "plain.0", "a \"quoted\" \\ text", "\n\t\x01\x7f", "\u00e9\u4e2d", "no \xff UTF-8",
                                 "{\"w\":{\"saved_offsets\":[0,0]}}"}) {
    EXPECT_EQ(JsonText(text), json(text).dump(-1, ' ', false, json::error_handler_t::replace));
  }
}

}  // namespace
}  // namespace paramshard::safetensors
