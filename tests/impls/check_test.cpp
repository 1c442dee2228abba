// SPDX-License-Identifier: MIT
// The suite itself in the 16-bit dtypes: a plain kernel passes every case, a broken one does not.
#include "tests/impls/check.hpp"

#include <gtest/gtest-spi.h>

namespace attn::test {
namespace {

enum class Fault {
  none,
  hidden_key,      // the last visible key is not seen
  other_kv_head,   // query head h reads KV head h mod heads_kv
  unwritten_row,   // the last row of each head
  nan_left_out,    // a NaN becomes a plausible number
  gap_written,     // one element past each row
  rounded_scores,  // scores, kept in the dtype too, are off by units
};

// Row by row, with the numerators of the weights rounded and the sum divided out last, as fused kernels
// do.
template <class Element>
void plain_kernel(const Problem& p, const Io& io, float* weights, Fault fault) {
  std::vector<float> sums(p.head_dim_v);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t i = 0; i < p.n_q; ++i) {
        if (fault == Fault::unwritten_row && i == p.n_q - 1) continue;
        const std::int64_t g = fault == Fault::other_kv_head ? h % p.heads_kv : p.kv_head(h);
        const std::int64_t hidden = fault == Fault::hidden_key ? 1 : 0;
        const std::int64_t visible = std::max<std::int64_t>(0, p.visible(b, i) - hidden);
        const Element* q = io.q.row<Element>(b, h, i);
        float max = -infinity;
        for (std::int64_t j = 0; j < visible; ++j) {
          const Element* k = io.k.row<Element>(b, g, j);
          float dot = 0;
          for (std::int64_t c = 0; c < p.head_dim; ++c) dot += q[c] * k[c];
          weights[j] = dot * static_cast<float>(p.effective_scale());
          if (fault == Fault::rounded_scores) weights[j] = Element(weights[j]);
          max = std::max(max, weights[j]);
        }
        float sum = 0;
        std::fill(sums.begin(), sums.end(), 0.0F);
        for (std::int64_t j = 0; j < visible; ++j) {
          float weight = std::exp(weights[j] - max);
          if (fault == Fault::nan_left_out && std::isnan(weight)) weight = 0;
          sum += weight;
          const Element* v = io.v.row<Element>(b, g, j);
          for (std::int64_t c = 0; c < p.head_dim_v; ++c) sums[c] += Element(weight) * v[c];
        }
        Element* out = io.out.row<Element>(b, h, i);
        for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
          out[c] = Element(visible == 0 ? 0.0F : sums[c] / sum);
        }
        if (fault == Fault::gap_written && i + 1 < p.n_q && p.head_dim_v > 0) {
          out[p.head_dim_v] = out[0];
        }
        *io.log_sum_exp.row<float>(b, h, i) = max + std::log(sum);
      }
    }
  }
}

// The cases in which the kernel is found wrong.
std::vector<std::string> failures(DType dtype, Fault fault) {
  const Backend backend{.name = "test.plain", .offers_log_sum_exp = true};
  std::vector<std::string> failed;
  for (const Case& c : cases_in_16_bits(dtype)) {
    const Cost cost{.scratch_bytes = 4 * c.problem.n_kv};
    testing::TestPartResultArray results;
    {
      const testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
      check_run(c, backend, cost, [&](const Problem& p, const Io& io, void*, void* scratch) {
        with_element(dtype, [&]<class Element>(Element) {
          plain_kernel<Element>(p, io, static_cast<float*>(scratch), fault);
        });
      });
    }
    if (results.size() > 0) failed.push_back(c.name);
  }
  return failed;
}

TEST(CasesIn16Bits, APlainKernelPassesAndABrokenOneDoesNot) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    EXPECT_GE(cases_in_16_bits(dtype).size(), 30U);
    EXPECT_EQ(failures(dtype, Fault::none), std::vector<std::string>{});
    for (const auto& [fault, least] : {std::pair{Fault::hidden_key, 20U},
                                       {Fault::other_kv_head, 3U},
                                       {Fault::unwritten_row, 25U},
                                       {Fault::nan_left_out, 3U},
                                       {Fault::gap_written, 1U},
                                       {Fault::rounded_scores, 1U}}) {
      EXPECT_GE(failures(dtype, fault).size(), least)
          << "dtype " << int(dtype) << ", fault " << int(fault);
    }
  }
}

}  // namespace
}  // namespace attn::test
