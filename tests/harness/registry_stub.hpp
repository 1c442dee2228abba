// SPDX-License-Identifier: MIT
// A list of backends that only plan with: the flags of each kind, no kernels.
#pragma once

#include "harness/registry.hpp"

namespace attn::stub {

inline std::optional<Refusal> refuses(const Problem& /*p*/) { return std::nullopt; }
inline Cost cost(const Problem& p) {
  const std::int64_t pairs = p.heads * p.pairs();
  return {.flops = 2 * pairs * (p.head_dim + p.head_dim_v), .exps = pairs};
}
inline void run(const Problem& /*p*/, const Io& /*io*/, void* /*state*/, void* /*scratch*/) {}

}  // namespace attn::stub
