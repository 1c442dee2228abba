// SPDX-License-Identifier: MIT
#include "harness/ranges.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "harness/error.hpp"

namespace attn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Ranges, DoubleByDefault) {
  EXPECT_THAT(parse_range("--n", "128:1024", 1), ElementsAre(128, 256, 512, 1024));
  EXPECT_THAT(parse_range("--n", "128:1024:x2", 1), ElementsAre(128, 256, 512, 1024));
}

TEST(Ranges, RootTwoStepsRoundFromTheStart) {
  EXPECT_THAT(parse_range("--n", "1024:8192:xsqrt2", 1),
              ElementsAre(1024, 1448, 2048, 2896, 4096, 5793, 8192));
}

TEST(Ranges, EndBetweenStepsIsNotReached) {
  EXPECT_THAT(parse_range("--n", "100:399", 1), ElementsAre(100, 200));
}

TEST(Ranges, ListsKeepOrderAndDropRepeats) {
  EXPECT_THAT(parse_range("--n", "2k,17,1,17,1:4", 1), ElementsAre(2048, 17, 1, 2, 4));
}

struct BadRange {
  const char* text;
  const char* complaint;
};
class RangesRefuse : public testing::TestWithParam<BadRange> {};

TEST_P(RangesRefuse, NamesOptionAndWhatWouldWork) {
  try {
    parse_range("--n", GetParam().text, 1);
    FAIL() << GetParam().text << " was taken";
  } catch (const CommandError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_THAT(error.what(), HasSubstr("--n"));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().complaint));
    EXPECT_THAT(error.what(), HasSubstr("128:8192"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , RangesRefuse,
    testing::Values(BadRange{"", "not a whole number"}, BadRange{"0", "too small"},
                    BadRange{"-5", "too small"}, BadRange{"12.5", "not a whole number"},
                    BadRange{"many", "not a whole number"}, BadRange{"8192:128", "runs backwards"},
                    BadRange{"1:9:x3", "step"}, BadRange{"1:2:x2:x2", "colons"},
                    BadRange{"1,,2", "not a whole number"},
                    BadRange{"9999999999999999999999", "too large"},
                    BadRange{"3000000000", "too large"}, BadRange{"4000000k", "too large"},
                    BadRange{"1e3", "not a whole number"}, BadRange{"0x10", "not a whole number"},
                    BadRange{"+5", "not a whole number"}, BadRange{"1k5", "not a whole number"},
                    BadRange{"1kk", "not a whole number"}, BadRange{"k", "not a whole number"},
                    BadRange{"1, 2", "not a whole number"}, BadRange{",", "not a whole number"},
                    BadRange{"1:8:x1", "step"}, BadRange{"1:8:x0.5", "step"},
                    BadRange{"1:8:", "step"}, BadRange{"0:8", "too small"},
                    BadRange{"9223372036854775807:9223372036854775807", "too large"},
                    BadRange{" 128", "not a whole number"}, BadRange{"50%", "not a whole number"}));

TEST(Ranges, AnEndNearTheLargestValueIsReachedAndNotPassed) {
  EXPECT_EQ(parse_range("--n", "1:2147483647", 1).size(), 31U);
  EXPECT_EQ(parse_range("--n", "1:2147483647:xsqrt2", 1).back(), 1518500250);
  EXPECT_THAT(parse_range("--n", "2147483647:2147483647", 1), ElementsAre(2147483647));
}

TEST(Ranges, ZeroCannotBeMultiplied) {
  EXPECT_THROW(parse_range("--batch", "0:8", 0), CommandError);
}

TEST(Whole, IsDecimalAndWithinItsLimits) {
  EXPECT_EQ(parse_whole("--rounds", "010", 1, 100), 10);  // not 8
  EXPECT_EQ(parse_whole("--rounds", "1k", 1, 2000), 1024);
  for (const char* text : {"", "0", "101", "-1", "+1", " 7", "7 ", "0x10", "1e1", "1.0", "7,8",
                           "99999999999999999999", "nan", "1:2"}) {
    try {
      parse_whole("--rounds", text, 1, 100);
      FAIL() << text << " was taken";
    } catch (const CommandError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("--rounds"), HasSubstr("from 1 to 100")));
    }
  }
}

}  // namespace
}  // namespace attn
