// SPDX-License-Identifier: MIT
#include "harness/layer.hpp"

#include "harness/names.hpp"
#include "impls/support/madd.hpp"
#ifdef ATTN_HAVE_BLAS
#include "impls/support/blas.hpp"
#endif

namespace attn {
namespace {

bool wraps_core(const Backend& backend, const Problem& p) {
  return p.scope == Scope::layer && has_heads(backend.family);
}

Problem core_problem(const Problem& p) {
  Problem core = p;
  core.scope = Scope::core;
  core.d_model = 0;
  core.output_projection = false;
  return core;
}

// cpu/ is what loops alone can do; every other folder multiplies with the library, where there is
// one.
bool uses_blas(const Backend& backend) {
#ifdef ATTN_HAVE_BLAS
  return backend.name.substr(0, backend.name.find('.')) != "cpu";
#else
  static_cast<void>(backend);
  return false;
#endif
}

// The layer's tensors inside the scratch, as byte offsets. They need the alignment of a float, the
// core's scratch that of the arena, 64 bytes: so it lies behind them where they end at a multiple
// of 64 and before them where they do not. Nothing is rounded up, and the size is the exact sum.
struct Layout {
  std::int64_t core, q, k, v, z;  // z only with an output projection
  std::int64_t bytes;             // without the core's
};

Layout layout(const Backend& backend, const Problem& p) {
  const std::int64_t q = 4 * p.batch * p.n_q * p.heads * p.head_dim;
  const std::int64_t k = 4 * p.batch * p.n_kv * p.heads_kv * p.head_dim;
  const std::int64_t v = 4 * p.batch * p.n_kv * p.heads_kv * p.head_dim_v;
  const std::int64_t z = p.output_projection ? 4 * p.batch * p.n_q * p.heads * p.head_dim_v : 0;
  const std::int64_t tensors = q + k + v + z;
  const bool core_last = tensors % 64 == 0;
  // Asked for only where it matters: this runs inside the clock.
  const std::int64_t core_bytes = core_last ? 0 : backend.cost(core_problem(p)).scratch_bytes;
  const std::int64_t start = core_last ? 0 : core_bytes;
  return {.core = core_last ? tensors : 0,
          .q = start,
          .k = start + q,
          .v = start + q + k,
          .z = start + q + k + v,
          .bytes = tensors};
}

// out [batch, n, width] = in w^T: in [batch, n, inner], w [width, inner], any strides of the
// tokens.
void project(const Backend& backend, std::int64_t batch, std::int64_t n, std::int64_t inner,
             std::int64_t width, const ConstView& in, const void* weights, const View& out) {
  const float* w = static_cast<const float*>(weights);
#ifdef ATTN_HAVE_BLAS
  if (uses_blas(backend)) {
    project_tokens(batch, n, inner, width, in, w, out);
    return;
  }
#else
  static_cast<void>(backend);
#endif
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < n; ++t) {
      const float* x = in.row<float>(b, 0, t);
      float* y = out.row<float>(b, 0, t);
      for (std::int64_t o = 0; o < width; ++o) {
        float dot = 0.0F;
        for (std::int64_t c = 0; c < inner; ++c) dot = madd(dot, x[c], w[o * inner + c]);
        y[o] = dot;
      }
    }
  }
}

// A tensor [batch, token, head, dim] without gaps, seen as [batch, head, token, dim].
View packed(void* data, std::int64_t n, std::int64_t heads, std::int64_t dim) {
  return {data, n * heads * dim, dim, heads * dim};
}

ConstView read_only(const View& view) {
  return {view.data, view.batch_stride, view.head_stride, view.token_stride};
}

}  // namespace

std::optional<Refusal> refuses(const Backend& backend, const Problem& p) {
  if (!wraps_core(backend, p)) return backend.refuses(p);
  if (backend.memory != Memory::host) {
    return Refusal{.sentence = "a layer around a device core is not supported"};
  }
  if (backend.own_clock) {
    return Refusal{.sentence = "a layer around a core in another process would have two clocks"};
  }
  if (p.regime == Regime::decode) {
    return Refusal{.sentence = "a layer in decode would need the cache of its keys and values"};
  }
  if (p.dtype != DType::f32) return Refusal{.sentence = "the layer computes in f32 only"};
  if (p.d_model < 1) return Refusal{.sentence = "a layer needs d_model of at least 1"};
#ifdef ATTN_HAVE_BLAS
  if (uses_blas(backend)) {
    if (auto refusal = refuse_unless_one_pool()) return refusal;
  }
#endif
  return backend.refuses(core_problem(p));
}

Cost cost(const Backend& backend, const Problem& p) {
  if (!wraps_core(backend, p)) return backend.cost(p);
  Cost cost = backend.cost(core_problem(p));
  // Each projection multiplies tokens [t, inner] by weights [width, inner]. A library call counts
  // its operands once; the loops read two elements per multiplication.
  const auto add_projection = [&](std::int64_t tokens, std::int64_t inner, std::int64_t width) {
    cost.flops += 2 * tokens * inner * width;
    cost.bytes += 4 * (uses_blas(backend) ? tokens * inner + width * inner + tokens * width
                                          : tokens * width * (2 * inner + 1));
  };
  add_projection(p.batch * p.n_q, p.d_model, p.heads * p.head_dim);
  add_projection(p.batch * p.n_kv, p.d_model, p.heads_kv * p.head_dim);
  add_projection(p.batch * p.n_kv, p.d_model, p.heads_kv * p.head_dim_v);
  if (p.output_projection) add_projection(p.batch * p.n_q, p.heads * p.head_dim_v, p.d_model);
  cost.scratch_bytes += layout(backend, p).bytes;
  return cost;
}

void prepare(const Backend& backend, const Problem& p, const Parameters& parameters, void* state) {
  if (backend.prepare == nullptr) return;
  backend.prepare(wraps_core(backend, p) ? core_problem(p) : p, parameters, state);
}

void run(const Backend& backend, const Problem& p, const Io& io, void* state, void* scratch) {
  if (!wraps_core(backend, p)) {
    backend.run(p, io, state, scratch);
    return;
  }
  const Problem core = core_problem(p);
  const Layout at = layout(backend, p);
  char* const base = static_cast<char*>(scratch);
  const View q = packed(base + at.q, p.n_q, p.heads, p.head_dim);
  const View k = packed(base + at.k, p.n_kv, p.heads_kv, p.head_dim);
  const View v = packed(base + at.v, p.n_kv, p.heads_kv, p.head_dim_v);
  // Without an output projection the core writes y itself.
  const View z = p.output_projection
                     ? packed(base + at.z, p.n_q, p.heads, p.head_dim_v)
                     : View{io.y.data, io.y.batch_stride, p.head_dim_v, io.y.token_stride};
  const ConstView& source = p.n_kv == p.n_q ? io.x : io.context;

  io.phase("projections");
  const Parameters& w = io.parameters;
  project(backend, p.batch, p.n_q, p.d_model, p.heads * p.head_dim, io.x, w.w_q, q);
  project(backend, p.batch, p.n_kv, p.d_model, p.heads_kv * p.head_dim, source, w.w_k, k);
  project(backend, p.batch, p.n_kv, p.d_model, p.heads_kv * p.head_dim_v, source, w.w_v, v);

  Io inner;
  inner.q = read_only(q);
  inner.k = read_only(k);
  inner.v = read_only(v);
  inner.out = z;
  inner.probabilities = io.probabilities;
  inner.log_sum_exp = io.log_sum_exp;
  inner.phase = io.phase;
  inner.stream = io.stream;
  backend.run(core, inner, state, base + at.core);

  if (p.output_projection) {
    io.phase("output projection");
    project(backend, p.batch, p.n_q, p.heads * p.head_dim_v, p.d_model, read_only(z), w.w_o, io.y);
    io.phase("");
  }
}

std::string projection_impl(const Backend& backend, const Problem& p) {
  if (!wraps_core(backend, p)) return "";
  return uses_blas(backend) ? "openblas sgemm" : "loops";
}

}  // namespace attn
