#include "train/predict/layouts.h"

namespace moelab {
namespace {

// What ranks along the data axis can do. parallel.zero=2 is 1: gradients go to their owners in both.
const std::vector<Changes>& data_layouts() {
  static const auto layout = [](const char* zero, const char* reduce, const char* reshard) {
    return Changes{
        {"parallel.zero", zero}, {"parallel.reduce", reduce}, {"placement.reshard_after_forward", reshard}};
  };
  static const std::vector<Changes> layouts = {
      layout("0", "micro_batch", "true"), layout("0", "step", "true"),
      layout("1", "micro_batch", "true"), layout("1", "step", "true"),
      layout("3", "micro_batch", "true"), layout("3", "micro_batch", "false")};
  return layouts;
}

}  // namespace

std::vector<Changes> rank_layouts(int64_t ranks) {
  if (ranks == 1) return {};
  std::vector<Changes> layouts;
  for (Changes layout : data_layouts()) {
    layout["parallel.data"] = std::to_string(ranks);
    layouts.push_back(layout);
  }
  return layouts;
}

}  // namespace moelab
