#include <ATen/core/Tensor.h>

#include "kernels/memory/allocators.h"
#include "kernels/memory/report.h"

namespace moelab {

BlockInfo charge_block(Ledger& ledger, size_t bytes, Kind kind) {
  if (!ledger.charge(bytes, kind)) throw_refusal(ledger);
  return {bytes, &ledger, kind};
}

void throw_refusal(const Ledger& ledger) {
  const Refusal r = ledger.refusal().value_or(Refusal{});
  const std::string limit = r.limit > 0 ? "the limit is " + human_bytes(r.limit) : "the system has no more";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory on the ", ledger.name(), ": tried to allocate ",
                   human_bytes(r.requested), " (", r.requested, " bytes) with ", human_bytes(r.allocated),
                   " allocated; ", limit);
}

namespace {

// Null if the allocators of this folder did not make the block.
BlockInfo* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return tensor.is_meta() ? meta_block(data) : cpu_block(data);
}

}  // namespace

Kind kind_of(const at::Tensor& tensor) {
  const BlockInfo* block = block_of(tensor);
  return block ? block->kind : KindScope::current();
}

void retag(const at::Tensor& tensor, Kind kind) {
  BlockInfo* block = block_of(tensor);
  if (block == nullptr) return;
  block->ledger->retag(block->bytes, block->kind, kind);
  block->kind = kind;
}

}  // namespace moelab
