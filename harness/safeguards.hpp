// SPDX-License-Identifier: MIT
// The rules that keep a backend honest, by name: a finding says which rule made it, and `selftest
// --without RULE` takes one away to show what it is for.
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>

namespace attn {

enum class Safeguard {
  reference_rows,
  finite_scan,
  lazy_answers,
  exact_zeros,
  input_hash,
  fences,
  protected_pages,
  memory_peak,
  declared_flops,
  other_threads,
  guard_row,
  guard_second_row,
  guard_value,
  guard_key,
  guard_token,
  warm_lot,
  closing_check,
  fresh_time,
  roof,
};
inline constexpr std::size_t safeguard_count = 19;

struct SafeguardInfo {
  Safeguard rule;
  std::string_view name;
  std::string_view catches;  // what gets through without it
};

inline constexpr SafeguardInfo safeguards[safeguard_count] = {
    {Safeguard::reference_rows, "reference-rows",
     "a wrong value: sampled rows, edges and random ones, against float64"},
    {Safeguard::finite_scan, "finite-scan",
     "an element not written, or NaN or infinite, anywhere in the poisoned output"},
    {Safeguard::lazy_answers, "lazy-answers",
     "zeros or the mean of V where the bound cannot tell them from the answer"},
    {Safeguard::exact_zeros, "exact-zeros", "rows of zeros where nobody looks"},
    {Safeguard::input_hash, "input-hash", "inputs changed by a call"},
    {Safeguard::fences, "fences", "writes before the start of a tensor"},
    {Safeguard::protected_pages, "protected-pages", "reads and writes past the end of a tensor"},
    {Safeguard::memory_peak, "memory-peak", "memory taken beyond the declared scratch"},
    {Safeguard::declared_flops, "declared-flops", "fewer flops declared than the problem needs"},
    {Safeguard::other_threads, "other-threads",
     "work on threads that were not declared, or after the call has returned"},
    {Safeguard::guard_row, "guard-row", "a timed call that leaves a row of some head as it was"},
    {Safeguard::guard_second_row, "guard-second-row",
     "a timed call that computes only what it finds poisoned"},
    {Safeguard::guard_value, "guard-value", "values kept from an earlier call"},
    {Safeguard::guard_key, "guard-key", "keys or scores kept from an earlier call"},
    {Safeguard::guard_token, "guard-token", "a layer that keeps what an earlier call made of x"},
    {Safeguard::warm_lot, "warm-lot", "every second call skipped"},
    {Safeguard::closing_check, "closing-check", "right on the inputs of the sweep alone"},
    {Safeguard::fresh_time, "fresh-time", "fast only while the inputs stay nearly the same"},
    {Safeguard::roof, "roof-105", "faster than the machine can multiply"},
};

constexpr std::string_view name_of(Safeguard rule) {
  return safeguards[static_cast<std::size_t>(rule)].name;
}

// Those in force: all, unless selftest says otherwise.
class Safeguards {
 public:
  [[nodiscard]] bool has(Safeguard rule) const { return !off_[static_cast<std::size_t>(rule)]; }
  void remove(Safeguard rule) { off_.set(static_cast<std::size_t>(rule)); }

 private:
  std::bitset<safeguard_count> off_;
};

// What a rule found, in one sentence.
struct Finding {
  Safeguard rule;
  std::string reason;
};

}  // namespace attn
