// SPDX-License-Identifier: MIT
// The one table of problems that every backend is held against.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "impls/attention.hpp"

namespace attn::test {

struct Inputs {
  View q, k, v;
};

struct Case {
  std::string name;  // letters, digits and underscores
  Problem problem;
  double size_of_q = 1.0;  // q is N(0, 1) times this, and so are the logits
  bool slack = false;      // [token, head, dim] with gaps behind every token and batch item
  std::function<void(const Problem&, const Inputs&)> change = {};  // of the random q, k and v
};

inline Case core_case(const std::string& name, std::int64_t n,
                      const std::function<void(Case&)>& edit = {}) {
  Case c;
  c.name = fmt::format("core_{}", name);
  c.problem.n_q = c.problem.n_kv = n;
  c.problem.head_dim = c.problem.head_dim_v = 16;
  if (edit) edit(c);
  return c;
}

inline void set_heads(Case& c, std::int64_t heads, std::int64_t heads_kv) {
  c.problem.heads = heads;
  c.problem.heads_kv = heads_kv;
}

inline void set_dims(Case& c, std::int64_t d, std::int64_t d_v) {
  c.problem.head_dim = d;
  c.problem.head_dim_v = d_v;
}

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

template <class F>
void for_each_row(std::int64_t batch, std::int64_t heads, std::int64_t tokens, const View& view,
                  F&& f) {
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < tokens; ++t) f(b, t, view.row<float>(b, h, t));
    }
  }
}

template <class F>
void for_each_query(const Problem& p, const Inputs& in, F&& f) {
  for_each_row(p.batch, p.heads, p.n_q, in.q, [&](auto, auto i, float* q) { f(i, q); });
}

template <class F>
void for_each_key(const Problem& p, const Inputs& in, F&& f) {
  for_each_row(p.batch, p.heads_kv, p.n_kv, in.k, [&](auto, auto j, float* k) { f(j, k); });
}

// Keys past each length are NaN, their values NaN or infinite; without lengths those of one key in
// the last third, which the rows that see it answer with NaN and no other row may notice.
inline void hide_nan(const Problem& p, const Inputs& in) {
  const auto hidden = [&](std::int64_t b, std::int64_t j) {
    const std::int64_t first = p.key_lengths.empty() ? p.n_kv - 1 - p.n_kv / 3 : p.key_lengths[b];
    return j == first || (!p.key_lengths.empty() && j > first);
  };
  for_each_row(p.batch, p.heads_kv, p.n_kv, in.k, [&](auto b, auto j, float* k) {
    if (hidden(b, j)) std::fill_n(k, p.head_dim, quiet_nan);
  });
  for_each_row(p.batch, p.heads_kv, p.n_kv, in.v, [&](auto b, auto j, float* v) {
    if (hidden(b, j)) std::fill_n(v, p.head_dim_v, j % 2 == 0 ? quiet_nan : infinity);
  });
}

// From key `first` on everything is NaN or infinite, in K, in V or in both.
inline void poison_from(const Problem& p, const Inputs& in, std::int64_t first) {
  const float poisons[] = {quiet_nan, infinity, -infinity};
  for_each_key(p, in, [&](auto j, float* k) {
    if (j >= first && j % 3 != 0) std::fill_n(k, p.head_dim, poisons[j % 3]);
  });
  for_each_row(p.batch, p.heads_kv, p.n_kv, in.v, [&](auto, auto j, float* v) {
    if (j >= first && j % 3 != 1) std::fill_n(v, p.head_dim_v, poisons[j / 3 % 3]);
  });
}

// q becomes (side, 0, ...) and key j (position(j), 0, ...): all logits are scale * side * position.
// Every second query has the other side where `both`.
inline void lay_on_a_line(const Problem& p, const Inputs& in, float side, bool both,
                          const std::function<float(std::int64_t)>& position) {
  for_each_query(p, in, [&](auto i, float* q) {
    std::fill_n(q, p.head_dim, 0.0F);
    q[0] = both && i % 2 == 1 ? -side : side;
  });
  for_each_key(p, in, [&](auto j, float* k) {
    std::fill_n(k, p.head_dim, 0.0F);
    k[0] = position(j);
  });
}

// The first element of `keys` keys from `first` on is `value` and all queries are positive there, so
// that the logits of these keys are infinite with its sign.
inline void make_infinite(const Problem& p, const Inputs& in, std::int64_t first, std::int64_t keys,
                          float value) {
  for_each_query(p, in, [&](auto, float* q) { q[0] = 0.5F + std::abs(q[0]); });
  for_each_key(p, in, [&](auto j, float* k) {
    if (j >= first && j < first + keys) k[0] = value;
  });
}

inline std::vector<Case> core_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, std::int64_t n,
                       const std::function<void(Case&)>& edit = {}) {
    cases.push_back(core_case(name, n, edit));
  };
  const auto causal = [](Case& c) { c.problem.mask = Mask::causal; };

  for (const std::int64_t n : {1, 2, 31, 63, 64, 65, 129, 197}) {
    add(fmt::format("n{}", n), n);
    add(fmt::format("causal_n{}", n), n, causal);
  }
  for (const std::int64_t d : {1, 7, 16, 64, 80, 128, 256}) {
    add(fmt::format("d{}", d), 37, [&](Case& c) { set_dims(c, d, d); });
  }
  add("d24_dv40", 70, [&](Case& c) { set_dims(c, 24, 40), causal(c); });
  add("d256_dv1", 33, [&](Case& c) { set_dims(c, 256, 1); });
  add("d1_dv256", 33, [&](Case& c) { set_dims(c, 1, 256); });

  const std::vector<std::pair<std::int64_t, std::int64_t>> sharings = {
      {8, 8}, {8, 2}, {8, 1}, {6, 3}};
  for (const auto& [heads, heads_kv] : sharings) {
    const std::string name = fmt::format("heads{}_{}", heads, heads_kv);
    const auto shared = [heads = heads, heads_kv = heads_kv](Case& c) {
      set_heads(c, heads, heads_kv);
      c.problem.batch = 3;
    };
    add(name, 21, shared);
    add(name + "_causal", 71, [&](Case& c) { shared(c), causal(c); });
    add(name + "_slack", 19, [&](Case& c) { shared(c), c.slack = true; });
    add(name + "_decode", 1, [&](Case& c) {
      shared(c);
      c.problem.regime = Regime::decode;
      c.problem.n_kv = 83;
    });
    add(name + "_lengths", 40, [&](Case& c) {
      shared(c), causal(c);
      c.problem.n_kv = 90;
      c.problem.key_lengths = {90, 0, 67};
    });
  }

  add("slack_causal", 67, [&](Case& c) {
    causal(c), set_heads(c, 2, 2), set_dims(c, 13, 9);
    c.problem.batch = 2;
    c.slack = true;
  });
  add("few_queries", 5, [&](Case& c) { c.problem.n_kv = 90; });
  add("few_queries_causal", 5, [&](Case& c) { causal(c), c.problem.n_kv = 90; });
  add("few_queries_causal_two_blocks", 70, [&](Case& c) { causal(c), c.problem.n_kv = 90; });
  add("few_queries_causal_far", 70, [&](Case& c) { causal(c), c.problem.n_kv = 200; });
  add("few_keys", 90, [&](Case& c) { c.problem.n_kv = 5; });
  add("few_keys_causal", 90, [&](Case& c) { causal(c), c.problem.n_kv = 5; });
  add("few_keys_causal_empty_block", 200, [&](Case& c) {
    causal(c), set_heads(c, 4, 2);
    c.problem.n_kv = 70;
  });
  add("one_key", 9, [&](Case& c) { c.problem.n_kv = 1; });
  add("one_query", 1, [&](Case& c) { c.problem.n_kv = 200; });
  add("no_batch", 9, [&](Case& c) { c.problem.batch = 0; });
  add("no_keys", 9, [&](Case& c) { c.problem.n_kv = 0; });
  add("no_keys_causal", 9, [&](Case& c) { causal(c), c.problem.n_kv = 0; });
  add("no_queries", 0, [&](Case& c) { c.problem.n_kv = 7; });
  add("no_queries_causal", 0, [&](Case& c) { causal(c), c.problem.n_kv = 7; });
  add("lengths", 20, [&](Case& c) {
    c.problem.batch = 4;
    c.problem.n_kv = 50;
    c.problem.key_lengths = {50, 1, 0, 33};
  });
  add("lengths_nan", 20, [&](Case& c) {
    c.problem.batch = 3;
    c.problem.n_kv = 50;
    c.problem.key_lengths = {49, 0, 33};
    c.change = hide_nan;
  });
  for (const std::int64_t n : {3, 40, 150}) {
    add(fmt::format("causal_nan_n{}", n), n, [&](Case& c) {
      causal(c), set_heads(c, 4, 2);
      c.change = hide_nan;
    });
  }
  add("causal_lengths_nan", 150, [&](Case& c) {
    causal(c);
    c.problem.batch = 2;
    c.problem.key_lengths = {100, 3};
    c.change = hide_nan;
  });
  for (const std::int64_t n : {40, 200}) {
    add(fmt::format("causal_poison_n{}", n), n, [&](Case& c) {
      causal(c), set_heads(c, 2, 1);
      c.change = [n](auto& p, auto& in) { poison_from(p, in, n * 3 / 4); };
    });
  }
  add("few_queries_causal_poison", 70, [&](Case& c) {
    causal(c), c.problem.n_kv = 200;
    c.change = [](auto& p, auto& in) { poison_from(p, in, 170); };
  });
  add("nan_in_one_query", 20, [&](Case& c) {
    c.change = [](auto& p, auto& in) {
      for_each_query(p, in, [](auto i, float* q) { q[3] = i == 7 ? quiet_nan : q[3]; });
    };
  });
  // A weight of 0 that comes from the scores does meet its value.
  for (const float poison : {quiet_nan, infinity}) {
    add(std::isnan(poison) ? "nan_of_no_weight" : "infinity_of_no_weight", 20, [&](Case& c) {
      c.change = [poison](auto& p, auto& in) {
        lay_on_a_line(p, in, 1.0F, false, [](auto j) { return j == 9 ? -4000.0F : 0.0F; });
        in.v.template row<float>(0, 0, 9)[2] = poison;
      };
    });
  }
  // Logits of -inf have no weight, wherever they lie, but a row of nothing else has no softmax, and
  // neither has one with +inf.
  for (const auto& [name, first, keys, value] :
       std::vector<std::tuple<std::string, std::int64_t, std::int64_t, float>>{
           {"minus_infinity_first", 0, 70, -infinity},
           {"minus_infinity_inside", 5, 1, -infinity},
           {"minus_infinity_last", 70, 10, -infinity},
           {"minus_infinity_everywhere", 0, 80, -infinity},
           {"infinity_first", 0, 1, infinity},
           {"infinity_last", 79, 1, infinity}}) {
    const auto infinite = [first = first, keys = keys, value = value](Case& c) {
      c.problem.n_kv = 80;
      c.change = [=](auto& p, auto& in) { make_infinite(p, in, first, keys, value); };
    };
    add(name, 10, infinite);
    add(name + "_causal", 80, [&](Case& c) { causal(c), infinite(c); });
  }

  add("scale_0", 30, [&](Case& c) { c.problem.scale = 0.0; });
  add("scale_2", 30, [&](Case& c) { c.problem.scale = 2.0; });
  add("scale_1", 30, [&](Case& c) { c.problem.scale = 1.0; });
  add("scale_negative", 30, [&](Case& c) { c.problem.scale = -0.5; });
  add("scale_negative_causal", 30, [&](Case& c) { causal(c), c.problem.scale = -0.5; });
  add("scale_0_causal", 30, [&](Case& c) { causal(c), c.problem.scale = 0.0; });
  add("scale_0_nan", 150, [&](Case& c) {
    causal(c), set_heads(c, 4, 2);
    c.problem.scale = 0.0;
    c.change = hide_nan;
  });
  add("scale_0_one_query_nan", 1, [&](Case& c) {
    c.problem.n_kv = 9;
    c.problem.scale = 0.0;
    c.change = hide_nan;
  });
  add("logits_1e4", 60, [&](Case& c) { c.size_of_q = 1e4; });
  add("logits_1e4_causal", 100, [&](Case& c) { causal(c), c.size_of_q = 1e4; });
  add("logits_1e_4", 60, [&](Case& c) { c.size_of_q = 1e-4; });
  // Logits of 1e11, whose rounding alone is thousands: exp of what rounding leaves of a maximum less
  // itself would be infinite. Rows of the other side find their maximum at the other end.
  add("logits_1e11_one_key", 12, [&](Case& c) {
    c.problem.n_kv = 1;
    c.change = [](auto& p, auto& in) {
      lay_on_a_line(p, in, 1.2345679e11F, true, [](auto) { return 1.37F; });
    };
  });
  for (const bool both : {false, true}) {
    add(both ? "logits_1e11_both_ends" : "logits_1e11", 7, [&](Case& c) {
      c.problem.n_kv = 200;
      c.change = [both](auto& p, auto& in) {
        lay_on_a_line(p, in, 1.2345679e9F, both,
                      [](auto j) { return 0.37F + 1.21F * static_cast<float>(j >> 1); });
      };
    });
  }
  // The maximum changes at every key, or never after the first.
  add("logits_rise_and_fall", 12, [&](Case& c) {
    c.problem.n_kv = 200;
    c.change = [](auto& p, auto& in) {
      lay_on_a_line(p, in, 4.0F, true, [](auto j) { return 0.9F * static_cast<float>(j); });
    };
  });
  // A key of zeros, as one that pads a tile would be, has all the weight beside logits near -60.
  for (const std::int64_t n : {1, 2, 7, 33, 63, 65, 127, 129, 257}) {
    const auto low = [](Case& c) {
      c.problem.scale = 1.0;
      c.change = [](auto& p, auto& in) {
        for_each_query(p, in, [&](auto, float* q) { q[0] = 10.0F; });
        for_each_key(p, in, [&](auto, float* k) { k[0] = -6.0F; });
      };
    };
    add(fmt::format("logits_minus_60_n{}", n), n, low);
    add(fmt::format("logits_minus_60_causal_n{}", n), n, [&](Case& c) { causal(c), low(c); });
  }
  add("dv0", 9, [&](Case& c) { set_dims(c, 16, 0); });
  add("dv0_causal", 90, [&](Case& c) { causal(c), set_heads(c, 4, 2), set_dims(c, 16, 0); });
  add("threads_2", 130, [&](Case& c) {
    causal(c), set_heads(c, 4, 2);
    c.problem.threads = 2;
  });
  // More threads than KV heads: a split over the keys, whose last part some rows do not see.
  add("threads_3_few_queries", 5, [&](Case& c) {
    causal(c), set_heads(c, 4, 2);
    c.problem.n_kv = 300;
    c.problem.threads = 3;
  });
  add("threads_3_one_query_lengths", 1, [&](Case& c) {
    c.problem.batch = 2;
    c.problem.n_kv = 300;
    c.problem.key_lengths = {300, 70};
    c.problem.threads = 3;
  });
  return cases;
}

// Those of the core cases that kernels of a 16-bit dtype get wrong in their own way, by the name of the
// case in f32. Inputs are rounded to the dtype, and all are within the range of f16.
inline std::vector<Case> cases_in_16_bits(DType dtype) {
  const std::set<std::string> chosen = {"n1",
                                        "n2",
                                        "n65",
                                        "n197",
                                        "causal_n1",
                                        "causal_n2",
                                        "causal_n65",
                                        "causal_n197",
                                        "d1",
                                        "d7",
                                        "d64",
                                        "d80",
                                        "d128",
                                        "d256",
                                        "d24_dv40",
                                        "heads8_2_causal",
                                        "heads8_2_slack",
                                        "heads8_2_decode",
                                        "heads8_2_lengths",
                                        "few_queries_causal",
                                        "few_keys_causal",
                                        "no_keys",
                                        "lengths_nan",
                                        "causal_nan_n150",
                                        "causal_poison_n40",
                                        "nan_in_one_query",
                                        "minus_infinity_last",
                                        "infinity_last",
                                        "scale_0_nan",
                                        "logits_1e4",
                                        "logits_minus_60_n33",
                                        "dv0",
                                        "threads_2",
                                        "threads_3_few_queries"};
  std::vector<Case> cases;
  for (Case& c : core_cases()) {
    if (!chosen.contains(c.name.substr(5))) continue;
    c.name = fmt::format("core_{}_{}", dtype == DType::bf16 ? "bf16" : "f16", c.name.substr(5));
    c.problem.dtype = dtype;
    cases.push_back(std::move(c));
  }
  return cases;
}

inline std::vector<Case> recurrence_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, std::int64_t n, std::int64_t d,
                       const std::function<void(Case&)>& edit = {}) {
    Case c;
    c.name = fmt::format("layer_recurrence_{}", name);
    c.problem.scope = Scope::layer;
    c.problem.n_q = c.problem.n_kv = n;
    c.problem.d_model = d;
    if (edit) edit(c);
    cases.push_back(c);
  };
  for (const std::int64_t n : {0, 1, 2, 17, 300}) add(fmt::format("n{}", n), n, 24);
  add("d1", 17, 1);
  add("d67", 17, 67);
  add("no_batch", 5, 8, [](Case& c) { c.problem.batch = 0; });
  add("batch_3", 17, 20, [](Case& c) { c.problem.batch = 3; });
  add("batch_3_one_step", 1, 20, [](Case& c) { c.problem.batch = 3; });
  add("batch_3_slack", 9, 20, [](Case& c) { c.problem.batch = 3, c.slack = true; });
  add("mask_ignored", 9, 20, [](Case& c) { c.problem.mask = Mask::causal; });
  return cases;
}

inline std::vector<Case> attention_layer_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, std::int64_t n, bool output_projection,
                       const std::function<void(Case&)>& edit = {}) {
    Case c;
    c.name = fmt::format("layer_attention_{}{}", output_projection ? "wo_" : "", name);
    c.problem.scope = Scope::layer;
    c.problem.n_q = c.problem.n_kv = n;
    c.problem.d_model = 40;
    set_heads(c, 4, 2), set_dims(c, 16, 16);
    c.problem.output_projection = output_projection;
    if (edit) edit(c);
    cases.push_back(c);
  };
  for (const bool wo : {false, true}) {
    for (const std::int64_t n : {1, 2, 37}) add(fmt::format("n{}", n), n, wo);
    add("causal_batch", 70, wo,
        [](Case& c) { c.problem.mask = Mask::causal, c.problem.batch = 3; });
    add("odd_sizes", 13, wo, [](Case& c) {
      set_heads(c, 3, 3), set_dims(c, 5, 7);
      c.problem.d_model = 11;
    });
    add("cross", 13, wo, [](Case& c) { c.problem.n_kv = 31, c.problem.batch = 2; });
    add("cross_slack", 31, wo,
        [](Case& c) { c.problem.n_kv = 13, c.problem.batch = 2, c.slack = true; });
    add("lengths", 13, wo, [](Case& c) { c.problem.batch = 2, c.problem.key_lengths = {13, 4}; });
    add("no_batch", 13, wo, [](Case& c) { c.problem.batch = 0; });
    add("no_keys", 13, wo, [](Case& c) { c.problem.n_kv = 0; });
  }
  return cases;
}

inline std::vector<Case> cases_for(Family family) {
  if (family == Family::rnn || family == Family::lstm) return recurrence_cases();
  if (family != Family::attention) return {};
  std::vector<Case> cases = core_cases();
  for (Case& c : attention_layer_cases()) cases.push_back(std::move(c));
  return cases;
}

}  // namespace attn::test
