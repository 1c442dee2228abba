// SPDX-License-Identifier: MIT
#include "tests/harness/registry_stub.hpp"

namespace attn {

const std::vector<Entry>& registry() {
  using namespace stub;
  static const std::vector<Entry> entries = {
      {"blas.shared",
       {},
       {.name = "blas.shared",
        .threaded = true,
        .exploits_sharing = true,
        .refuses = refuses,
        .cost = cost,
        .run = run}},
      {"cpu.lstm",
       {},
       {.name = "cpu.lstm", .family = Family::lstm, .refuses = refuses, .cost = cost, .run = run}},
      {"cpu.plain",
       {},
       {.name = "cpu.plain", .layer_default = true, .refuses = refuses, .cost = cost, .run = run}},
      {"gpu.absent", "needs a toolkit: install it", {}},
      {"peer.absent", "needs a wheel: install it", {}, true},
      {"peer.fused",
       {},
       {.name = "peer.fused", .threaded = true, .refuses = refuses, .cost = cost, .run = run},
       true},
  };
  return entries;
}

const std::vector<FolderFlags>& folder_flags() {
  static const std::vector<FolderFlags> flags;
  return flags;
}

}  // namespace attn
