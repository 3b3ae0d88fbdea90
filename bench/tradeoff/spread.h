#pragma once
#include <vector>

namespace moelab::tradeoff {

// Of a non-empty set, the mean of the middle two where their number is even.
double median(std::vector<double> values);

// Half the width of the 95 % interval of the median of `ratios`, as a share of it: a percentile bootstrap
// (Efron 1979) of 2000 draws, the same for the same ratios. 0 for fewer than two, which say nothing.
double relative_spread(const std::vector<double>& ratios);

}  // namespace moelab::tradeoff
