#include "train/predict/network.h"

#include <algorithm>
#include <vector>

namespace moelab {

Road road_along(const Network& network, const RankLayout& layout, Axis axis) {
  const Link& inside = network.inside;
  const std::vector<int64_t> ranks = ranks_along(layout, axis, 0);
  const auto away = !network.between ? 0 : std::count_if(ranks.begin(), ranks.end(), [&](int64_t rank) {
    return rank >= network.machine_ranks;
  });
  if (away == 0) return {inside.seconds_per_byte, inside.latency, false};
  const Link& between = *network.between;
  const double out =
      axis == Axis::pipeline ? 1 : static_cast<double>(away) / static_cast<double>(ranks.size() - 1);
  return {std::max((1 - out) * inside.seconds_per_byte, out * between.seconds_per_byte),
          std::max(inside.latency, between.latency), true};
}

}  // namespace moelab
