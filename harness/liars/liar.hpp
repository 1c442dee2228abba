// SPDX-License-Identifier: MIT
// A dishonest backend: what it pretends, on which problems, and which rule of the harness is there
// to catch it. A liar is a file of this folder that exports `Liar liar_<stem>()`; CMake lists them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "harness/registry.hpp"
#include "harness/safeguards.hpp"

namespace attn {

struct Liar {
  struct Lie {
    Problem problem;
    Safeguard caught_by;  // the rule that is meant to catch it
    // Whose finding it is, where the rule itself finds nothing but brings the lie to light.
    std::optional<Safeguard> found_by = std::nullopt;
  };
  std::string_view says;  // the lie, in a few words
  std::vector<Lie> lies;  // where it shows
  Backend backend;        // its name is set by the list
};

struct NamedLiar {
  std::string_view name;  // the file's stem
  Liar liar;
};
const std::vector<NamedLiar>& liars();

}  // namespace attn
