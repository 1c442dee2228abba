// SPDX-License-Identifier: MIT
// What apply says of backends that no machine with the real list can show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/command.hpp"
#include "harness/csv.hpp"
#include "harness/npy.hpp"

namespace attn {
namespace {

TEST(Apply, ABackendThatIsNotBuiltSaysWhatToInstall) {
  const std::string file = testing::TempDir() + "apply_q.npy";
  overwrite_file(file, npy_bytes(std::vector<std::int64_t>{1, 2}, std::vector<float>{1, 2}));
  try {
    command_apply({"gpu.absent", "--q", file, "--k", file, "--v", file, "--out", file});
    FAIL() << "not refused";
  } catch (const CommandError& error) {
    EXPECT_EQ(error.code(), Exit::nothing_measured);
    EXPECT_THAT(error.what(), testing::HasSubstr("needs a toolkit: install it"));
  }
}

}  // namespace
}  // namespace attn
