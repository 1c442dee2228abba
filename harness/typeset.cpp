// SPDX-License-Identifier: MIT
#include "harness/typeset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace attn {
namespace {

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::size_t shown = display_width(text);
  const std::string space(width - std::min(width, shown), ' ');
  return right ? space + text : text + space;
}

std::string without_trailing_spaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t end = text.size(); end > 3 && text[end - 4] != '-';) {
    end -= 3;
    text.insert(end, 1, ' ');
  }
  return text;
}

std::string prefixed(double value) {
  constexpr std::string_view prefix = " kMGTPE";
  std::size_t step = 0;
  for (; value >= 999.95 && step + 1 < prefix.size(); ++step) value /= 1000;
  if (step == 0) return fmt::format("{:.4g}", value);
  return fmt::format("{:#.4g} {}", value, prefix[step]);
}

std::string memory_text(std::int64_t bytes) {
  if (bytes < 10'000) return grouped(bytes) + " B";
  const auto value = static_cast<double>(bytes);
  if (bytes < 1'000'000'000) return fmt::format("{:.3f} MB", value / 1e6);
  if (bytes < 1'000'000'000'000) return fmt::format("{:.3f} GB", value / 1e9);
  return fmt::format("{:.3f} TB", value / 1e12);
}

std::string grouped_real(double value) {
  const double whole = std::round(value);
  if (std::abs(value - whole) <= 1e-9 * whole) return grouped(std::llround(value));
  const auto parts = std::lldiv(std::llround(100 * value), 100);
  return fmt::format("{}.{:02}", grouped(parts.quot), parts.rem);
}

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string table(const Rows& rows, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], display_width(row[c]));
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c)
      line += "  " + padded(row[c], widths[c], c >= left);
    text += without_trailing_spaces(line);
  }
  return text;
}

std::string beside(const std::vector<Lines>& blocks) {
  std::size_t height = 0;
  for (const Lines& block : blocks) height = std::max(height, block.size());
  std::vector<std::string> lines(height);
  for (const Lines& block : blocks) {
    std::size_t width = 0;
    for (const std::string& line : block) width = std::max(width, display_width(line));
    for (std::size_t i = 0; i < height; ++i) {
      lines[i] += lines[i].empty() ? "  " : "   ";
      lines[i] += padded(i < block.size() ? block[i] : "", width, false);
    }
  }
  std::string text;
  for (std::string& line : lines) text += without_trailing_spaces(std::move(line));
  return text;
}

}  // namespace attn
