// SPDX-License-Identifier: MIT
#include "harness/csv.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "harness/error.hpp"

namespace attn {
namespace {

using testing::Optional;

TEST(Csv, QuotesOnlyWhatMustBe) {
  EXPECT_EQ(csv_line({"a", "b,c", "d\"e", ""}), "a,\"b,c\",\"d\"\"e\",\n");
}

TEST(Csv, ReadsBackWhatItWrote) {
  const std::vector<std::string> fields = {"", "plain", "comma,", "\"quoted\"", "{\"k\":1}"};
  std::string line = csv_line(fields);
  line.pop_back();
  EXPECT_THAT(parse_csv_line(line), Optional(fields));
}

TEST(Csv, RefusesBrokenQuotes) {
  EXPECT_EQ(parse_csv_line("a,\"open"), std::nullopt);
  EXPECT_EQ(parse_csv_line("a,\"b\"c"), std::nullopt);
  EXPECT_EQ(parse_csv_line("a,b\"c\""), std::nullopt);
}

TEST(Csv, NumbersSurviveTheRoundTrip) {
  for (const double value : {0.1, 1.0 / 3, 6.02e23, 5e-324, 123456789.125}) {
    const std::string text = csv_number(value);
    double back = 0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    EXPECT_EQ(back, value);
  }
  EXPECT_EQ(csv_number(std::numeric_limits<double>::infinity()), "");
  EXPECT_EQ(csv_number(std::nan("")), "");
}

TEST(Csv, ReplaceFileLeavesTheOldOneWhenItFails) {
  const std::string dir = testing::TempDir() + "csv_replace";
  std::filesystem::create_directories(dir);
  replace_file(dir + "/a.csv", "old");
  replace_file(dir + "/a.csv", "new");
  EXPECT_EQ(read_file(dir + "/a.csv"), "new");
  EXPECT_THROW(replace_file(dir + "/missing/a.csv", "x"), CommandError);
  EXPECT_FALSE(std::filesystem::exists(dir + "/a.csv.new"));
  std::filesystem::create_directories(dir + "/taken.csv");
  EXPECT_THROW(replace_file(dir + "/taken.csv", "x"), CommandError);
  EXPECT_FALSE(std::filesystem::exists(dir + "/taken.csv.new"));
}

TEST(Csv, AFullDiskIsSaidInTheSystemsWords) {
  const int fd = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  EXPECT_FALSE(write_all(fd, "x"));
  EXPECT_EQ(errno, ENOSPC);
  ::close(fd);
}

TEST(Csv, ADeviceIsNotRead) {
  EXPECT_THROW(read_file("/dev/full"), CommandError);  // it would give zeros for ever
}

TEST(Csv, WordsOfOthersAreNoFormula) {
  EXPECT_EQ(csv_words("=1+1"), "it says: =1+1");
  EXPECT_EQ(csv_words("@x\n+y\t"), "it says: @x\\n+y\\t");
  EXPECT_EQ(csv_words("\r=1"), "\\x0d=1");
  EXPECT_EQ(csv_words("library call failed: status -7"), "library call failed: status -7");
  EXPECT_EQ(csv_words(""), "");
}

}  // namespace
}  // namespace attn
