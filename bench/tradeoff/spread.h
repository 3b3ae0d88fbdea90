#pragma once
#include <vector>

namespace moelab::tradeoff {

// Median of a non-empty list; for an even count the mean of the middle two.
double median(std::vector<double> values);

// Half the width of the 95 % confidence interval of the median of `ratios`, relative to the median: a
// percentile bootstrap (Efron 1979) of 2000 draws, the same for the same ratios. 0 for fewer than two ratios.
double relative_spread(const std::vector<double>& ratios);

}  // namespace moelab::tradeoff
