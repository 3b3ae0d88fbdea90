#include <c10/core/Allocator.h>

#include "kernels/memory/allocators.h"

namespace moelab {
namespace {

void free_record(void* context) {
  auto* block = static_cast<BlockInfo*>(context);
  block->ledger->release(block->bytes, block->kind);
  delete block;
}

// Counts what the same program would allocate, and allocates nothing: a dry run's memory.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device meta(c10::kMeta);
    if (bytes == 0) return {nullptr, meta};
    const BlockInfo block = charge_block(meta_ledger(HomeScope::current()), bytes, KindScope::current());
    return {nullptr, new BlockInfo(block), &free_record, meta};
  }
  void copy_data(void*, const void*, size_t) const override {}
};

}  // namespace

void install_meta_allocator() {
  static MetaAllocator* allocator = new MetaAllocator;  // blocks outlive main
  c10::SetAllocator(c10::kMeta, allocator, 100);
}

BlockInfo* meta_block(const c10::DataPtr& data) {
  return data.get_deleter() == &free_record ? static_cast<BlockInfo*>(data.get_context()) : nullptr;
}

}  // namespace moelab
