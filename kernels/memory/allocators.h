#pragma once
#include <cstddef>

#include "kernels/memory/ledger.h"

namespace c10 {
class DataPtr;
}

// What the two allocators and retag() share. The rest of the program includes only ledger.h.
namespace moelab {

// What a block is charged to. It lies in the header before a CPU block, or in the record of a meta block.
struct BlockInfo {
  size_t bytes;
  Ledger* ledger;
  Kind kind;
};

void install_cpu_allocator();
void install_meta_allocator();

// The BlockInfo of the block behind `data`; null if the allocator of that device did not make the block.
BlockInfo* cpu_block(const c10::DataPtr& data);
BlockInfo* meta_block(const c10::DataPtr& data);

// Charges a block to `ledger`, or throws c10::OutOfMemoryError.
BlockInfo charge_block(Ledger& ledger, size_t bytes, Kind kind);
// Throws a c10::OutOfMemoryError that describes the ledger's last refusal.
[[noreturn]] void throw_refusal(const Ledger& ledger);

}  // namespace moelab
