// SPDX-License-Identifier: MIT
// The one table of problems that every backend is held against.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "impls/attention.hpp"

namespace attn::test {

struct Case {
  std::string name;  // letters, digits and underscores
  Problem problem;
  double size_of_q = 1.0;        // q is N(0, 1) times this, and so are the logits
  bool slack = false;            // [token, head, dim] with gaps behind every token and batch item
  bool nan_behind_mask = false;  // a key that some or all rows do not see is NaN (see Tensors)
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
    c.nan_behind_mask = true;
  });
  for (const std::int64_t n : {3, 40, 150}) {
    add(fmt::format("causal_nan_n{}", n), n, [&](Case& c) {
      causal(c), set_heads(c, 4, 2);
      c.nan_behind_mask = true;
    });
  }
  add("causal_lengths_nan", 150, [&](Case& c) {
    causal(c);
    c.problem.batch = 2;
    c.problem.key_lengths = {100, 3};
    c.nan_behind_mask = true;
  });

  add("scale_0", 30, [&](Case& c) { c.problem.scale = 0.0; });
  add("scale_2", 30, [&](Case& c) { c.problem.scale = 2.0; });
  add("scale_negative", 30, [&](Case& c) { c.problem.scale = -0.5; });
  add("logits_1e4", 60, [&](Case& c) { c.size_of_q = 1e4; });
  add("logits_1e4_causal", 100, [&](Case& c) { causal(c), c.size_of_q = 1e4; });
  add("logits_1e_4", 60, [&](Case& c) { c.size_of_q = 1e-4; });
  add("threads_2", 130, [&](Case& c) {
    causal(c), set_heads(c, 4, 2);
    c.problem.threads = 2;
  });
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
