// SPDX-License-Identifier: MIT
// Recurrences have no row that can be computed alone, but they forget: a window of 208 steps from
// the zero state ends in the true state (of an lstm, the product of 192 forget gates is about
// 1e-53). That it has forgotten is not assumed: the window also runs from a state of ones.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "harness/reference.hpp"
#include "harness/reference_math.hpp"

namespace attn::reference {
namespace {

constexpr std::int64_t first_steps = 64;
constexpr std::int64_t window = 208;
constexpr std::int64_t compared = 16;
constexpr double forgotten = 1e-9;
constexpr double from_the_start_flops = 3e8;  // about 50 ms in float64
constexpr std::int64_t items = 4;             // batch items that are checked with windows

// `length` steps of one batch item from token `start` on; those from `compared` on are truth.
struct Sequence {
  std::int64_t batch, start, length, compared;
};

std::vector<Sequence> plan(const Problem& p, std::int64_t gate_count, std::uint64_t seed,
                           bool& windows) {
  std::vector<Sequence> sequences;
  const double flops = 4.0 * static_cast<double>(gate_count) * static_cast<double>(p.batch) *
                       static_cast<double>(p.n_q) * static_cast<double>(p.d_model) *
                       static_cast<double>(p.d_model);
  windows = flops > from_the_start_flops && p.n_q > first_steps + window;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (!windows) {
      sequences.push_back({b, 0, p.n_q, 0});
      continue;
    }
    // Items spread over the batch get windows, the last one among them; the others their first
    // steps.
    const bool chosen = p.batch <= items || (b + 1) * items / p.batch != b * items / p.batch;
    if (!chosen) {
      sequences.push_back({b, 0, compared, 0});
      continue;
    }
    sequences.push_back({b, 0, first_steps, 0});
    // Besides the end: a window whose compared steps begin at a multiple of the largest power of two
    // that fits, where whoever cuts the sequence into chunks starts one, and one drawn by lot.
    const std::int64_t end = p.n_q - window;
    const std::int64_t reach = window - compared;
    const auto border =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(p.n_q - compared)));
    const std::int64_t drawn = static_cast<std::int64_t>(
        random_bits(seed, static_cast<std::uint64_t>(b)) % static_cast<std::uint64_t>(end));
    std::int64_t after = first_steps;
    for (const std::int64_t start :
         {std::min(border - reach, drawn), std::max(border - reach, drawn), end}) {
      // No step is compared twice.
      if (start < end && start > end - compared) continue;
      if (start + window - compared < after) continue;
      sequences.push_back({b, start, window, window - compared});
      after = start + window;
    }
  }
  return sequences;
}

// A sequence under way. Windows run a second time, from a state of ones, in double.
struct Lane {
  std::size_t sequence;
  bool ones;
};

template <class T>
struct Outcome {
  std::vector<std::vector<T>> compared;  // per sequence [length - compared, d]
  std::vector<std::vector<T>> from_ones;
  std::vector<LastStep> last_steps;
};

// All lanes step together, so that U is read once a step and not once a lane.
template <class T>
Outcome<T> run_sequences(const Problem& p, Family family, std::int64_t gate_count, const Io& io,
                         const std::vector<Sequence>& sequences, bool with_ones) {
  const std::int64_t d = p.d_model;
  const std::int64_t width = gate_count * d;
  const Matrix<T> w(static_cast<const float*>(io.parameters.w), width, d);
  const Matrix<T> u(static_cast<const float*>(io.parameters.u), width, d);
  const auto* bias = static_cast<const float*>(io.parameters.b);

  Outcome<T> outcome;
  outcome.compared.resize(sequences.size());
  outcome.from_ones.resize(sequences.size());
  std::vector<std::vector<T>> w_x(sequences.size());
  std::vector<Lane> lanes;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const Sequence& sequence = sequences[s];
    w_x[s].resize(static_cast<std::size_t>(sequence.length * width));
    w.multiply(io.x.row<float>(sequence.batch, 0, sequence.start), io.x.token_stride,
               sequence.length, w_x[s].data());
    for (std::int64_t t = 0; t < sequence.length; ++t) {
      for (std::int64_t o = 0; o < width; ++o) {
        w_x[s][static_cast<std::size_t>(t * width + o)] += static_cast<T>(bias[o]);
      }
    }
    lanes.push_back({s, false});
    if (with_ones && sequence.start > 0) lanes.push_back({s, true});
  }
  std::stable_sort(lanes.begin(), lanes.end(), [&](const Lane& a, const Lane& b) {
    return sequences[a.sequence].length > sequences[b.sequence].length;
  });

  const auto size = static_cast<std::size_t>(d);
  std::vector<T> h(lanes.size() * size);
  std::vector<T> c(lanes.size() * size);
  std::vector<T> u_h(lanes.size() * static_cast<std::size_t>(width));
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    const T first = lanes[l].ones ? T{1} : T{0};
    std::fill_n(h.begin() + static_cast<std::int64_t>(l * size), d, first);
    std::fill_n(c.begin() + static_cast<std::int64_t>(l * size), d, first);
  }
  std::size_t active = lanes.size();
  for (std::int64_t t = 0; active > 0; ++t) {
    while (active > 0 && sequences[lanes[active - 1].sequence].length <= t) --active;
    u.multiply(h.data(), d, static_cast<std::int64_t>(active), u_h.data());
    for (std::size_t l = 0; l < active; ++l) {
      const Sequence& sequence = sequences[lanes[l].sequence];
      T* h_l = h.data() + l * size;
      T* c_l = c.data() + l * size;
      const T* u_h_l = u_h.data() + static_cast<std::int64_t>(l) * width;
      if (std::is_same_v<T, double> && !lanes[l].ones && sequence.start + t == p.n_q - 1) {
        outcome.last_steps.push_back(
            {sequence.batch, {u_h_l, u_h_l + width}, {h_l, h_l + d}, {c_l, c_l + d}});
      }
      cell(family, d, w_x[lanes[l].sequence].data() + t * width, u_h_l, h_l, c_l);
      if (t < sequence.compared) continue;
      auto& to = lanes[l].ones ? outcome.from_ones : outcome.compared;
      to[lanes[l].sequence].insert(to[lanes[l].sequence].end(), h_l, h_l + d);
    }
  }
  return outcome;
}

}  // namespace

std::vector<float> recurrence(const Problem& p, Family family, const Io& io, std::uint64_t seed,
                              Shape::Truth& truth) {
  const std::int64_t gate_count = family == Family::lstm ? 4 : family == Family::gru ? 3 : 1;
  bool windows = false;
  truth.width = p.d_model;
  const std::vector<Sequence> sequences =
      p.n_q == 0 ? std::vector<Sequence>{} : plan(p, gate_count, seed, windows);
  truth.mode = windows ? "windows" : "all rows";
  if (sequences.empty()) return {};

  const auto exact = run_sequences<double>(p, family, gate_count, io, sequences, true);
  const auto plain = run_sequences<float>(p, family, gate_count, io, sequences, false);
  std::vector<float> plain_values;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const Sequence& sequence = sequences[s];
    for (std::size_t i = 0; i < exact.from_ones[s].size(); ++i) {
      const double difference = std::abs(exact.from_ones[s][i] - exact.compared[s][i]);
      if (difference < forgotten) continue;
      throw std::runtime_error(fmt::format(
          "the recurrence remembers: {} steps after token {} of batch item {} states that began as "
          "zeros and as ones still differ by {:.1e}, so windows prove nothing about this shape",
          sequence.length, sequence.start, sequence.batch, difference));
    }
    for (std::int64_t t = sequence.compared; t < sequence.length; ++t) {
      truth.rows.push_back({sequence.batch, 0, sequence.start + t});
    }
    truth.values.insert(truth.values.end(), exact.compared[s].begin(), exact.compared[s].end());
    plain_values.insert(plain_values.end(), plain.compared[s].begin(), plain.compared[s].end());
  }
  truth.last_steps = exact.last_steps;
  return plain_values;
}

}  // namespace attn::reference
