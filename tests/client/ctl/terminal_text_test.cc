#include "client/ctl/terminal_text.h"

#include "gtest/gtest.h"

namespace paramshard::ctl {
namespace {

TEST(TerminalTextTest, TextOfAnyLanguageIsShownAsItIs) {
  for (const char* text : {"", "plain \\ text~", "\xc3\xa9t\xc3\xa9", "\xe4\xb8\xad\xe6\x96\x87", "\xf0\x9f\x8e\x89",
                           "\xc2\xa0", "\xef\xbf\xbd", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(TerminalText(text), text);
  }
}

TEST(TerminalTextTest, ControlCharactersAreShown) {
  EXPECT_EQ(TerminalText("a\x1b[2J\n\t\r\x7f"), "a\\x1b[2J\\x0a\\x09\\x0d\\x7f");
  EXPECT_EQ(TerminalText(absl::string_view("\0", 1)), "\\x00");
  // CSI, the first and the last of C1.
  EXPECT_EQ(TerminalText("\xc2\x9b"
                         "2J\xc2\x80\xc2\x9f"),
            "\\xc2\\x9b2J\\xc2\\x80\\xc2\\x9f");
}

TEST(TerminalTextTest, WhatIsNoUtf8IsShown) {
  EXPECT_EQ(TerminalText("\x9b"
                         "2J"),
            "\\x9b2J");
  EXPECT_EQ(TerminalText("a\xc3"), "a\\xc3");
  EXPECT_EQ(TerminalText("\xc3"
                         "a"),
            "\\xc3a");
  EXPECT_EQ(TerminalText("\xe4\xb8"), "\\xe4\\xb8");
  EXPECT_EQ(TerminalText("\xc0\x9b"), "\\xc0\\x9b");                    // ESC in two bytes
  EXPECT_EQ(TerminalText("\xe0\x80\x9b"), "\\xe0\\x80\\x9b");           // in three
  EXPECT_EQ(TerminalText("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");           // CSI in three
  EXPECT_EQ(TerminalText("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(TerminalText("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last code point
  EXPECT_EQ(TerminalText("\xff\xfe"), "\\xff\\xfe");
}

}  // namespace
}  // namespace paramshard::ctl
