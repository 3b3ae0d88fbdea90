#include "kernels/memory/report.h"

#include <cstdio>

namespace moelab {

std::string human_bytes(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.95 would print as "1024.0" of the smaller unit.
  while (value >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::vector<std::pair<std::string, int64_t>> kind_report(const KindBytes& bytes) {
  const auto of = [&](Kind kind) { return bytes[static_cast<size_t>(kind)]; };
  return {{"parameters", of(Kind::parameters) + of(Kind::parameter_experts)},
          {"parameters.experts", of(Kind::parameter_experts)},
          {"gradients", of(Kind::gradients)},
          {"optimizer", of(Kind::optimizer)},
          {"master", of(Kind::master)},
          {"activations", of(Kind::activations) + of(Kind::attention) + of(Kind::routing) +
                              of(Kind::capacity_buffers) + of(Kind::activation_experts)},
          {"activations.attention", of(Kind::attention)},
          {"activations.routing", of(Kind::routing)},
          {"activations.capacity_buffers", of(Kind::capacity_buffers)},
          {"activations.experts", of(Kind::activation_experts)},
          {"loss_head", of(Kind::loss_head)},
          {"kv_cache", of(Kind::kv_cache)},
          {"reference", of(Kind::reference)},
          {"communication", of(Kind::communication)},
          {"scratch", of(Kind::scratch)},
          {"other", of(Kind::other)}};
}

}  // namespace moelab
