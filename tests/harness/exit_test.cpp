// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "harness/error.hpp"

namespace attn {
namespace {

// From the exit codes that are promised: 2, 6, 130/143, 1, 3, 4, 5, and 0 when nothing else is.
const std::vector<int> promised = {2, 6, 130, 143, 1, 3, 4, 5, 0};

TEST(Exit, TheEarlierOfAnyTwoWins) {
  for (std::size_t i = 0; i < promised.size(); ++i) {
    for (std::size_t j = i; j < promised.size(); ++j) {
      const std::set<Exit> happened = {static_cast<Exit>(promised[j]),
                                       static_cast<Exit>(promised[i])};
      EXPECT_EQ(static_cast<int>(exit_of(happened)), promised[i])
          << promised[i] << " and " << promised[j];
    }
  }
}

TEST(Exit, TheWinnerOfMoreIsTheWinnerOfWinners) {
  // So that a sweep may decide first and a comparison add to it.
  for (unsigned chosen = 0; chosen < 1U << promised.size(); ++chosen) {
    std::set<Exit> all;
    Exit one_by_one = Exit::good;
    for (std::size_t i = 0; i < promised.size(); ++i) {
      if ((chosen >> i & 1U) == 0) continue;
      all.insert(static_cast<Exit>(promised[i]));
      one_by_one = exit_of({one_by_one, static_cast<Exit>(promised[i])});
    }
    EXPECT_EQ(exit_of(all), one_by_one);
  }
}

TEST(Exit, NothingHappenedIsGood) { EXPECT_EQ(exit_of({}), Exit::good); }

}  // namespace
}  // namespace attn
