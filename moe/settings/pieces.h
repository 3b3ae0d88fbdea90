#pragma once
#include <array>
#include <string_view>

namespace moelab {

// Parts of a block that training can recompute in backward instead of keeping, while the rest is kept.
//   norms          the outputs of both norms, from the residual stream
//   attention      the attention half: what is between its input and its output
//   expert_hidden  the hidden state of experts, shared experts and dense feed-forwards, from their input
//   moe            the MoE half, expert_hidden included; its routing is kept
enum class Piece { norms, attention, expert_hidden, moe };
constexpr std::array<std::string_view, 4> enum_names(Piece) {
  return {"norms", "attention", "expert_hidden", "moe"};
}

}  // namespace moelab
