#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace moelab {

// The axes of ranks. `replicas` are the ranks of a data axis that hold the same experts: its part beside
// `expert`. `stage` are the ranks that have the same layers: data and tensor together. `all` are all ranks.
enum class Axis : uint8_t { data, replicas, expert, tensor, pipeline, stage, all };
constexpr std::array<std::string_view, 7> enum_names(Axis) {
  return {"data", "replicas", "expert", "tensor", "pipeline", "stage", "all"};
}

// How many ranks lie along each axis. Experts borrow the data axis: its ranks hold different experts.
struct RankLayout {
  int64_t data = 1, tensor = 1, pipeline = 1;
  int64_t expert = 1;  // divides data

  // data * tensor * pipeline
  int64_t ranks() const { return data * tensor * pipeline; }
};

// The layout of a world of `ranks` with these settings of the group `parallel`; data = 0 takes what the
// others leave. Throws UserError unless data * tensor * pipeline = ranks and expert divides data.
RankLayout layout_of(int64_t ranks, int64_t data, int64_t tensor, int64_t pipeline, int64_t expert);

// A rank's place: ranks count up along tensor first, then expert, replicas, pipeline, so that those that send
// one another most are neighbours.
struct Place {
  int64_t data, replicas, expert, tensor, pipeline;
};
Place place_of(const RankLayout& layout, int64_t rank);

// The ranks that differ from `rank` along `axis` alone, itself among them, in the axis's order.
std::vector<int64_t> ranks_along(const RankLayout& layout, Axis axis, int64_t rank);

// The ranks that write a checkpoint together: all if they divide the state (`divided`), otherwise the first
// of those that hold the same.
std::vector<int64_t> writers_of(const RankLayout& layout, bool divided);

}  // namespace moelab
