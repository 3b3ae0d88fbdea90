#pragma once
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace moelab {

// The layer number in "blocks.LAYER.…", the name of a block's parameter or of what is kept for one; none: the
// name has no such beginning.
inline std::optional<int64_t> layer_in_name(std::string_view name) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!name.starts_with(kBlocks)) return std::nullopt;
  name.remove_prefix(kBlocks.size());
  int64_t layer = 0;
  const auto end = std::from_chars(name.data(), name.data() + name.size(), layer).ptr;
  return end == name.data() ? std::nullopt : std::optional(layer);
}

}  // namespace moelab
