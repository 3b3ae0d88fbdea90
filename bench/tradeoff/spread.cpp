#include "bench/tradeoff/spread.h"

#include <algorithm>
#include <cstdint>
#include <random>

namespace moelab::tradeoff {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double relative_spread(const std::vector<double>& ratios) {
  constexpr size_t kDraws = 2000, kTail = kDraws / 40;  // 2.5 %
  if (ratios.size() < 2) return 0;
  std::mt19937_64 random(1);
  std::vector<double> medians, draw(ratios.size());
  for (size_t i = 0; i < kDraws; ++i) {
    for (double& one : draw) one = ratios[random() % ratios.size()];
    medians.push_back(median(draw));
  }
  std::sort(medians.begin(), medians.end());
  return (medians[kDraws - 1 - kTail] - medians[kTail]) / 2 / median(ratios);
}

}  // namespace moelab::tradeoff
