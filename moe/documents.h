#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace moelab {

// Documents that share the rows of a batch. They have their own positions and see only themselves. Padding
// needs a target of -1 and is counted nowhere.
struct Documents {
  // (B, S) int32: where in its row the token's document begins; -1: padding. Undefined: each row is one
  // document.
  at::Tensor begin_BS;
  int64_t room = 0;  // document_room(), for attention on a GPU; 0: not known to the host

  Documents(at::Tensor begin_BS = {}, int64_t room = 0) : begin_BS(std::move(begin_BS)), room(room) {}
};

}  // namespace moelab
