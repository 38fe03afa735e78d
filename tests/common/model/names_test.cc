#include "common/model/names.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(NamesTest, Utf8IsAccepted) {
  for (const char* text :
       {"", "blocks.0.w1", "gewöhnlich", "重み", "\U0001F600", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "\xee\x80\x80"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
}

TEST(NamesTest, WhatIsNotUtf8IsRefused) {
  const absl::string_view texts[] = {
      "\x80",              // a continuation byte alone
      "\xc3",              // cut short
      "\xe2\x82",          // cut short
      "\xc0\xaf",          // overlong
      "\xe0\x9f\xbf",      // overlong
      "\xf0\x8f\xbf\xbf",  // overlong
      "\xed\xa0\x80",      // a surrogate
      "\xf4\x90\x80\x80",  // above U+10FFFF
      "\xf5\x80\x80\x80",  // above U+10FFFF
      "\xff",
      "a\xe2\x28\xa1",     // not a continuation byte
      "\xf0\x9f\x98\x28",  // not a continuation byte
  };
  for (const absl::string_view text : texts) EXPECT_FALSE(IsUtf8(text)) << DisplayName(text);
}

// Tests every code point after the definition of the encoding, and the gap of the surrogates.
TEST(NamesTest, AllCodePointsAreUtf8ButSurrogates) {
  for (uint32_t point = 0x80; point <= 0x10ffff; ++point) {
    std::string text;
    const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((point >> shift) & 0x3f)); };
    if (point < 0x800) {
      text += static_cast<char>(0xc0 | (point >> 6));
    } else if (point < 0x10000) {
      text += static_cast<char>(0xe0 | (point >> 12));
      tail(6);
    } else {
      text += static_cast<char>(0xf0 | (point >> 18));
      tail(12);
      tail(6);
    }
    tail(0);
    ASSERT_EQ(IsUtf8(text), point < 0xd800 || point > 0xdfff) << point;
  }
}

TEST(NamesTest, NamesHave1To512Bytes) {
  EXPECT_TRUE(CheckName("w").ok());
  EXPECT_TRUE(CheckName(std::string(512, 'w')).ok());
  EXPECT_EQ(CheckName(std::string(513, 'w')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckName("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckName(absl::string_view("a\0b", 3)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckName("\xff").code(), absl::StatusCode::kInvalidArgument);
}

TEST(NamesTest, LongNamesAreCutForMessages) {
  const std::string shown = DisplayName(std::string(1 << 20, 'w'));
  EXPECT_THAT(shown, StartsWith("wwww"));
  EXPECT_THAT(shown, HasSubstr("... (1048576 bytes)"));
  EXPECT_LT(shown.size(), 100u);
}

TEST(NamesTest, CutsLieBetweenCharacters) {
  for (int before = 0; before < 5; ++before) {
    std::string name(before, 'a');
    for (int i = 0; i < 100; ++i) name += "\U0001F600";
    EXPECT_TRUE(IsUtf8(DisplayName(name)));
    EXPECT_THAT(DisplayName(name), HasSubstr("\U0001F600... ("));
  }
}

TEST(NamesTest, ControlCharactersAndForeignBytesAreEscaped) {
  EXPECT_EQ(DisplayName("weights\n\x1b[31m"), "weights\\n\\x1b[31m");
  EXPECT_EQ(DisplayName("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(DisplayName("gewöhnlich"), "gewöhnlich");
  EXPECT_EQ(DisplayName(""), "\"\"");
}

}  // namespace
}  // namespace paramshard
