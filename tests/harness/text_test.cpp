// SPDX-License-Identifier: MIT
#include "harness/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace attn {
namespace {

TEST(Printable, KeepsTextAndEscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("größer than 2 %, \"quoted\" \\"), "größer than 2 %, \"quoted\" \\");
  EXPECT_EQ(printable("a\nb\tc\x1b[31m\x7f"), "a\\nb\\tc\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");  // U+009B, which starts a control sequence
  EXPECT_EQ(printable("€ 𝄞"), "€ 𝄞");
}

TEST(Printable, EscapesBytesThatAreNoText) {
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("a\xe2\x82"), "a\\xe2\\x82");                  // ends inside a character
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past U+10FFFF
}

TEST(Nearest, TakesFewestEditsWhateverTheCase) {
  EXPECT_EQ(nearest("RUN", {"list", "run", "compare"}), "run");
  EXPECT_EQ(nearest("CPU.LSTM", {"cpu.naive", "cpu.lstm"}), "cpu.lstm");
  EXPECT_EQ(nearest("", {"abc", "de"}), "de");
}

TEST(ShellWord, ReadsBackAsTheSameWord) {
  for (const std::string text :
       {"out/first", "a b", "", "it's", "$HOME", "a\"b", "back\\slash", "größe", "new\nline",
        "tab\tand 'quote' and \\n", "\x1b[31m", "--x=*"}) {
    EXPECT_EQ(printable(shell_word(text)), shell_word(text));  // on one line
    // Handed over in the environment, so that only bash reads it: $'...' is not every sh's.
    setenv("ATTN_WORD", ("printf %s " + shell_word(text)).c_str(), 1);
    FILE* pipe = popen("bash -c \"$ATTN_WORD\"", "r");
    ASSERT_NE(pipe, nullptr);
    std::array<char, 256> read{};
    const std::size_t count = std::fread(read.data(), 1, read.size(), pipe);
    EXPECT_EQ(pclose(pipe), 0);
    EXPECT_EQ(std::string(read.data(), count), text) << shell_word(text);
  }
  EXPECT_EQ(shell_word("out/first"), "out/first");
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_THAT(split("a,,b", ','), ::testing::ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), ::testing::ElementsAre(""));
}

}  // namespace
}  // namespace attn
