// SPDX-License-Identifier: MIT
// Every kernel there is to test the emulator with: the backends of the list, and the test kernels.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace attn::test {

struct Subject {
  std::string name;
  // Runs it on two heads of n tokens and compares with float64: what is wrong, or nothing. The
  // emulator's Error is an answer too.
  std::function<std::string(int n, bool causal)> fault;
};

std::vector<Subject> test_kernels();
std::vector<Subject> emulated_backends();  // with a word for the device and head_dim 64

}  // namespace attn::test
