// SPDX-License-Identifier: MIT
#include "harness/stats.hpp"

#include <algorithm>
#include <cmath>

namespace attn {

double quantile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  const double position = p * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double weight = position - static_cast<double>(below);
  return values[below] * (1 - weight) + values[above] * weight;
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

std::optional<std::pair<double, double>> median_interval(std::vector<double> values) {
  const int n = static_cast<int>(values.size());
  if (n < 6) return std::nullopt;
  std::sort(values.begin(), values.end());
  // tail = P(X < k) for X ~ Binomial(n, 1/2); the pair (k-th smallest, k-th largest) covers 1 - 2
  // tail.
  double term = std::pow(0.5, n);
  double tail = term;
  int k = 1;
  while (true) {
    term *= static_cast<double>(n - k + 1) / k;
    if (2 * (tail + term) > 0.05) break;
    tail += term;
    ++k;
  }
  return std::pair{values[static_cast<std::size_t>(k - 1)],
                   values[static_cast<std::size_t>(n - k)]};
}

std::optional<double> relative_half_width(const std::vector<double>& values) {
  const auto interval = median_interval(values);
  if (!interval) return std::nullopt;
  return (interval->second - interval->first) / 2 / median(values);
}

int count_outliers(const std::vector<double>& values) {
  if (values.size() < 4) return 0;
  const double q1 = quantile(values, 0.25);
  const double q3 = quantile(values, 0.75);
  const double reach = 1.5 * (q3 - q1);
  return static_cast<int>(std::count_if(values.begin(), values.end(), [&](double value) {
    return value < q1 - reach || value > q3 + reach;
  }));
}

}  // namespace attn
