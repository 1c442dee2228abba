// SPDX-License-Identifier: MIT
// A backend at the scope of its problem. At core scope, and for families that exist at layer scope
// only, these functions call the backend; at layer scope with an attention family they wrap the
// attention layer around its core: projections, core.run on a core problem whose q, k, v lie as
// [token, head, dim], then W_O where the problem has an output projection.
// The harness calls backends through these functions only.
#pragma once

#include "impls/attention.hpp"

namespace attn {

std::optional<Refusal> refuses(const Backend& backend, const Problem& problem);
Cost cost(const Backend& backend, const Problem& problem);
void prepare(const Backend& backend, const Problem& problem, const Parameters& parameters,
             void* state);
void run(const Backend& backend, const Problem& problem, const Io& io, void* state, void* scratch);

// What multiplies by the layer's weights: "loops", "openblas sgemm", ...; empty where nothing does.
std::string projection_impl(const Backend& backend, const Problem& problem);

}  // namespace attn
