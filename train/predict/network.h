#pragma once
#include <cstdint>
#include <optional>

#include "train/parallel/layout.h"
#include "train/predict/link.h"

namespace moelab {

// What connects the ranks of a run. Each rank has such a link to those of its machine and, where there are
// several machines, one of its own to the others.
struct Network {
  Network() = default;
  Network(const Link& link) : inside(link) {}  // one machine

  Link inside = {};
  std::optional<Link> between = {};  // machines; none: there is one
  int64_t machine_ranks = 0;         // on each of several machines, which rank by rank are filled
};

// How messages of a rank travel to the others along an axis.
struct Road {
  double seconds_per_byte = 0, latency = 0;
  bool leaves = false;  // the machine
};

// Of several ranks along an axis a message goes to all others at once, so that a byte takes as long as its
// part inside of the machine or its part between machines, whichever is longer. A stage of a pipeline sends
// to the next one alone; the slowest such way counts.
Road road_along(const Network& network, const RankLayout& layout, Axis axis);

}  // namespace moelab
