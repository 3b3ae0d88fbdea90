#include "train/parallel/layout.h"

#include <string>

#include "moe/settings/error.h"

namespace moelab {
namespace {

// Ranks along an axis, and how far apart neighbours are.
struct Extent {
  int64_t count, stride;
};

Extent extent(const RankLayout& layout, Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return {layout.tensor, 1};
    case Axis::expert:
      return {layout.expert, layout.tensor};
    case Axis::replicas:
      return {layout.data / layout.expert, layout.tensor * layout.expert};
    case Axis::data:
      return {layout.data, layout.tensor};
    case Axis::pipeline:
      return {layout.pipeline, layout.tensor * layout.data};
    case Axis::stage:
      return {layout.tensor * layout.data, 1};
    case Axis::all:
      return {layout.ranks(), 1};
  }
  return {1, 1};
}

int64_t index_along(const RankLayout& layout, Axis axis, int64_t rank) {
  const Extent along = extent(layout, axis);
  return rank / along.stride % along.count;
}

}  // namespace

RankLayout layout_of(int64_t ranks, int64_t data, int64_t tensor, int64_t pipeline, int64_t expert) {
  const int64_t others = tensor * pipeline;
  const auto product = [&] {
    return "parallel.tensor=" + std::to_string(tensor) +
           " times parallel.pipeline=" + std::to_string(pipeline);
  };
  if (data == 0) {
    if (ranks % others != 0) {
      throw UserError(product() + " does not divide the " + std::to_string(ranks) + " ranks of this run");
    }
    data = ranks / others;
  }
  if (data * others != ranks) {
    throw UserError("parallel.data=" + std::to_string(data) + " times " + product() + " takes " +
                    std::to_string(data * others) + " ranks; this run has " + std::to_string(ranks));
  }
  if (data % expert != 0) {
    throw UserError("parallel.expert=" + std::to_string(expert) + " does not divide the " +
                    std::to_string(data) + " data-parallel ranks");
  }
  return {.data = data, .tensor = tensor, .pipeline = pipeline, .expert = expert};
}

Place place_of(const RankLayout& layout, int64_t rank) {
  const auto along = [&](Axis axis) { return index_along(layout, axis, rank); };
  return {.data = along(Axis::data),
          .replicas = along(Axis::replicas),
          .expert = along(Axis::expert),
          .tensor = along(Axis::tensor),
          .pipeline = along(Axis::pipeline)};
}

std::vector<int64_t> ranks_along(const RankLayout& layout, Axis axis, int64_t rank) {
  const Extent along = extent(layout, axis);
  const int64_t first = rank - index_along(layout, axis, rank) * along.stride;
  std::vector<int64_t> ranks(along.count);
  for (int64_t i = 0; i < along.count; ++i) ranks[i] = first + i * along.stride;
  return ranks;
}

std::vector<int64_t> writers_of(const RankLayout& layout, bool divided) {
  std::vector<int64_t> writers = ranks_along(layout, Axis::all, 0);
  if (!divided) std::erase_if(writers, [&](int64_t r) { return place_of(layout, r).replicas > 0; });
  return writers;
}

}  // namespace moelab
