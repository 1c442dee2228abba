// SPDX-License-Identifier: MIT
// Order statistics of a few samples.
#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace attn {

double median(std::vector<double> values);  // of at least one value

// Linear interpolation between order statistics (Hyndman and Fan's type 7), 0 <= p <= 1.
double quantile(std::vector<double> values, double p);

// Distribution-free 95 % interval of the median: the narrowest symmetric pair of order statistics
// whose coverage, from Binomial(n, 1/2), is at least 95 %. Nothing below six values, where even the
// whole range covers less.
std::optional<std::pair<double, double>> median_interval(std::vector<double> values);

// Half the interval's width as a share of the median; nothing without an interval.
std::optional<double> relative_half_width(const std::vector<double>& values);

// Values farther than 1.5 interquartile ranges from the quartiles (Tukey): flagged, never dropped.
int count_outliers(const std::vector<double>& values);

}  // namespace attn
