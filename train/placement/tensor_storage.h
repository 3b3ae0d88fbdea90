#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/memory/ledger.h"

// Removes and restores the memory behind a tensor that stays the same tensor. What autograd saved of it,
// including views, is valid again once the memory is back. Version counters and the storage's size don't
// change: views can be made meanwhile, but reading data fails. Only for contiguous tensors that do not share
// their storage.
namespace moelab {

bool has_memory(const at::Tensor& tensor);
// New, uninitialised memory on the tensor's device, charged to `kind`. Throws c10::OutOfMemoryError.
void make_memory(const at::Tensor& tensor, Kind kind);
void drop_memory(const at::Tensor& tensor);

}  // namespace moelab
