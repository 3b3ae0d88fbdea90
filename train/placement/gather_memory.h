#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/memory/ledger.h"

// The memory behind a tensor that stays the same tensor while that comes and goes: what autograd saved of it,
// views too, is good again once the memory is back. Version counters are left alone, and so is the storage's
// size: views can be made meanwhile, and whoever asks for data is told that there are none. For contiguous
// tensors that have their storage to themselves.
namespace moelab {

bool has_memory(const at::Tensor& tensor);
// New memory on the tensor's device, not filled, booked to `kind`. Throws c10::OutOfMemoryError.
void make_memory(const at::Tensor& tensor, Kind kind);
void drop_memory(const at::Tensor& tensor);

}  // namespace moelab
