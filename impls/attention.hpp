// SPDX-License-Identifier: MIT
// The interface between a backend and everything else: the only header a backend must know.
//
// Notation. n_q queries see n_kv keys; `heads` query heads share `heads_kv` key/value heads; q and
// k have head_dim elements, v and out head_dim_v. The core maps q, k, v to
//     out = softmax(scale * q k^T + mask) v,
// the layer maps x (tokens of d_model elements) to y through the layer's parameters. Every tensor
// is indexed [batch, head, token, dim] with the last dimension contiguous and strides in elements;
// a tensor without heads (x, context, y) has head index 0 only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace attn {

enum class Scope { core, layer };
enum class Regime { prefill, decode };
enum class Mask { none, causal };
enum class DType { f32, bf16, f16 };
constexpr std::int64_t bytes_per_element(DType dtype) { return dtype == DType::f32 ? 4 : 2; }
enum class Memory { host, device };
enum class Family { attention, sparse, linear, rnn, gru, lstm, convolution };

// What is to be computed. A backend takes it whole or refuses it.
struct Problem {
  Scope scope = Scope::core;
  Regime regime = Regime::prefill;
  int threads = 1;
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t heads_kv = 1;  // divides heads
  std::int64_t n_q = 0;
  std::int64_t n_kv = 0;
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;
  std::int64_t d_model = 0;  // layer scope: elements of a token; the hidden size of recurrences
  bool output_projection = false;  // attention layer: multiply by W_O at the end
  Mask mask = Mask::none;
  std::vector<std::int64_t> key_lengths;  // empty, or [batch]: keys at and past it are padding
  std::optional<double> scale;            // empty: 1/sqrt(head_dim); 0 is a value
  DType dtype = DType::f32;
  std::int64_t width = 0;  // kernel, window, rank or features, by family
  Memory memory = Memory::host;

  [[nodiscard]] double effective_scale() const {
    return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
  }

  // Query heads that share one KV head.
  [[nodiscard]] std::int64_t group() const { return heads / heads_kv; }
  [[nodiscard]] std::int64_t kv_head(std::int64_t head) const { return head / group(); }

  // The keys that query i of batch item b sees are 0 ... visible(b, i) - 1: the causal corner lies
  // bottom-right (j <= i + n_kv - n_q), padding ends the row early, and no key at all is legal.
  [[nodiscard]] std::int64_t visible(std::int64_t b, std::int64_t i) const {
    const std::int64_t length =
        key_lengths.empty() ? n_kv : key_lengths[static_cast<std::size_t>(b)];
    const std::int64_t corner = mask == Mask::causal ? i + 1 + n_kv - n_q : n_kv;
    return std::max<std::int64_t>(0, std::min({length, corner, n_kv}));
  }

  // Visible (query, key) pairs of one head, summed over the batch.
  [[nodiscard]] std::int64_t pairs() const {
    if (key_lengths.empty()) {
      const std::int64_t m = std::min(n_q, n_kv);
      const std::int64_t hidden_by_corner = mask == Mask::causal ? m * (m - 1) / 2 : 0;
      const std::int64_t rows = mask == Mask::causal ? m : n_q;
      return batch * (rows * n_kv - hidden_by_corner);
    }
    std::int64_t sum = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t i = 0; i < n_q; ++i) sum += visible(b, i);
    }
    return sum;
  }
};

// A tensor [batch, head, token, dim] that somebody else owns; Void is void or const void.
template <class Void>
struct BasicView {
  Void* data = nullptr;  // null: the tensor is not there, or not wanted
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;

  template <class T>
  [[nodiscard]] auto* row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data) + b * batch_stride + h * head_stride + t * token_stride;
  }
  explicit operator bool() const { return data != nullptr; }
};
using View = BasicView<void>;
using ConstView = BasicView<const void>;

// The weights of a layer, row-major [output, input], in the problem's dtype; null where it has
// none.
struct Parameters {
  const void* w_q = nullptr;  // [heads * head_dim, d_model]
  const void* w_k = nullptr;  // [heads_kv * head_dim, d_model]
  const void* w_v = nullptr;  // [heads_kv * head_dim_v, d_model]
  const void* w_o = nullptr;  // [d_model, heads * head_dim_v]
  // Recurrences, G gates (rnn 1; gru r, z, n; lstm i, f, g, o): w, u [G * d, d], b [G * d].
  // Convolution: w [width, d, d], b [d].
  const void* w = nullptr;
  const void* u = nullptr;
  const void* b = nullptr;
};

// Called by an instrumented backend at the start of each phase ("projections", "scores", "softmax",
// "mixing", ...) and with "" after the last. Costs one comparison when nobody listens.
struct PhaseHook {
  void (*enter)(void* listener, std::string_view phase) = nullptr;
  void* listener = nullptr;
  void operator()(std::string_view phase) const {
    if (enter != nullptr) enter(listener, phase);
  }
};

// The tensors of one call, of the problem's dtype (16 bits: BFloat16, Float16 of
// impls/support/half.hpp) unless said otherwise. Core: q, k, v -> out. Layer: x (and context, from
// which K and V come where n_q != n_kv) -> y through the parameters.
struct Io {
  ConstView q;        // [batch, heads, n_q, head_dim]
  ConstView k;        // [batch, heads_kv, n_kv, head_dim]
  ConstView v;        // [batch, heads_kv, n_kv, head_dim_v]
  View out;           // [batch, heads, n_q, head_dim_v]; a query that sees no key gives zeros
  ConstView x;        // [batch, 1, n_q, d_model]
  ConstView context;  // [batch, 1, n_kv, d_model]
  Parameters parameters;
  View y;              // [batch, 1, n_q, d_model], or heads * head_dim_v wide without W_O
  View probabilities;  // f32 [batch, heads, n_q, n_kv]; zeros behind the mask
  View log_sum_exp;    // f32 [batch, heads, n_q, 1]; -inf where a query sees no key
  PhaseHook phase;
  void* stream = nullptr;     // device backends enqueue here and do not wait
  double* seconds = nullptr;  // where a backend with `own_clock` writes what the call took
};

// A refusal is data: the sentence becomes the reason of a row.
struct Refusal {
  enum class Kind {
    unsupported,  // this backend does not do this problem
    unavailable,  // this machine lacks what the backend needs
  };
  Kind kind = Kind::unsupported;
  std::string sentence;
};

struct Cost {
  std::int64_t flops = 0;      // of matrix and vector products only; a fused multiply-add counts 2
  std::int64_t exps = 0;       // calls of exp, tanh and sigmoid
  bool exps_at_least = false;  // the number depends on the data; `exps` is the least
  std::int64_t bytes = 0;      // moved between tensors, parameters, state, scratch and tile
  std::int64_t sequential_steps = 1;  // length of the longest chain of dependent steps
  std::int64_t state_bytes = 0;       // exact: what prepare fills
  std::int64_t scratch_bytes = 0;     // exact: what run may use, contents undefined at each call
};

// One implementation. `refuses` and `cost` answer from the problem and the machine alone. `prepare`
// is not timed and sees the parameters only. `run` is timed: it allocates nothing, prints nothing
// and, on a device, only enqueues. Exceptions mean failure (a broken library call), never refusal.
struct Backend {
  std::string_view name;  // folder.stem
  Family family = Family::attention;
  bool threaded = false;              // uses problem.threads threads; otherwise measured on one
  bool exploits_sharing = false;      // gains from heads_kv < heads by method, not by luck
  bool layer_default = false;         // part of the default sweep's Layer part
  bool offers_probabilities = false;  // fills io.probabilities when it is there
  bool offers_log_sum_exp = false;    // fills io.log_sum_exp when it is there
  bool own_clock = false;        // another process makes the call and times it: fills io.seconds
  Memory memory = Memory::host;  // where the tensors must lie
  DType accumulator = DType::f32;
  std::optional<Refusal> (*refuses)(const Problem&) = nullptr;
  Cost (*cost)(const Problem&) = nullptr;
  void (*prepare)(const Problem&, const Parameters&, void* state) = nullptr;  // null: no state
  void (*run)(const Problem&, const Io&, void* state, void* scratch) = nullptr;
  std::string (*resolved_impl)(const Problem&) = nullptr;  // which code ran, where that can vary
};

}  // namespace attn
