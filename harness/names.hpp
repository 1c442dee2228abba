// SPDX-License-Identifier: MIT
// The words for enumerations: the same in CSV, command line, JSON and plots.
#pragma once

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/error.hpp"
#include "harness/inputs.hpp"
#include "impls/attention.hpp"

namespace attn {

enum class CacheMode { warm, cold };
enum class Order { random, block };

// What a row can say; all but ok carry a reason.
enum class Status {
  ok,
  mismatch,
  mistrusted,
  unsupported,
  unavailable,
  oom_predicted,
  oom,
  cutoff,
  timeout,
  error
};

template <class E>
struct Names;  // specialised: `table`, pairs of value and word

#define ATTN_NAMES(Enum, ...)                                                                    \
  template <>                                                                                    \
  struct Names<Enum> {                                                                           \
    static constexpr auto table = std::to_array<std::pair<Enum, std::string_view>>(__VA_ARGS__); \
  }
ATTN_NAMES(Scope, {{Scope::core, "core"}, {Scope::layer, "layer"}});
ATTN_NAMES(Regime, {{Regime::prefill, "prefill"}, {Regime::decode, "decode"}});
ATTN_NAMES(DType, {{DType::f32, "f32"}, {DType::bf16, "bf16"}, {DType::f16, "f16"}});
ATTN_NAMES(CacheMode, {{CacheMode::warm, "warm"}, {CacheMode::cold, "cold"}});
ATTN_NAMES(Order, {{Order::random, "random"}, {Order::block, "block"}});
ATTN_NAMES(InputDist, {{InputDist::normal, "normal"},
                       {InputDist::uniform, "uniform"},
                       {InputDist::zeros, "zeros"}});
ATTN_NAMES(Family, {{Family::attention, "attention"},
                    {Family::sparse, "sparse"},
                    {Family::linear, "linear"},
                    {Family::rnn, "rnn"},
                    {Family::gru, "gru"},
                    {Family::lstm, "lstm"},
                    {Family::convolution, "convolution"}});
ATTN_NAMES(Status, {{Status::ok, "ok"},
                    {Status::mismatch, "mismatch"},
                    {Status::mistrusted, "mistrusted"},
                    {Status::unsupported, "unsupported"},
                    {Status::unavailable, "unavailable"},
                    {Status::oom_predicted, "oom_predicted"},
                    {Status::oom, "oom"},
                    {Status::cutoff, "cutoff"},
                    {Status::timeout, "timeout"},
                    {Status::error, "error"}});
#undef ATTN_NAMES

template <class E>
constexpr std::string_view name_of(E value) {
  for (const auto& [candidate, word] : Names<E>::table) {
    if (candidate == value) return word;
  }
  return "?";
}

template <class E>
constexpr std::optional<E> parse_name(std::string_view word) {
  for (const auto& [value, candidate] : Names<E>::table) {
    if (candidate == word) return value;
  }
  return std::nullopt;
}

// The value that an option's word names; throws CommandError (usage) that lists all.
template <class E>
E parse_word(std::string_view option, std::string_view word) {
  if (const auto value = parse_name<E>(word)) return *value;
  std::string words;
  for (const auto& [unused, candidate] : Names<E>::table) {
    words += fmt::format("{}{}", words.empty() ? "" : ", ", candidate);
  }
  usage_error(fmt::format("{}: \"{}\" is unknown; use one of {}", option, word, words));
}

// Families with heads, a mask and a cache; the others exist at layer scope only.
constexpr bool has_heads(Family family) {
  return family == Family::attention || family == Family::sparse || family == Family::linear;
}

}  // namespace attn
