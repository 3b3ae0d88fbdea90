#pragma once
#include <cstddef>

#include "kernels/memory/ledger.h"

namespace c10 {
class DataPtr;
}

// What the two allocators and retag() share; the rest of the program includes ledger.h alone.
namespace moelab {

// Whose a block is: in the header before a CPU block, in the record of a meta block.
struct BlockInfo {
  size_t bytes;
  Ledger* ledger;
  Kind kind;
};

void install_cpu_allocator();
void install_meta_allocator();

// The entry of the block behind `data`; null when the allocator of that device did not make it.
BlockInfo* cpu_block(const c10::DataPtr& data);
BlockInfo* meta_block(const c10::DataPtr& data);

// Charges a block of the current home or throws c10::OutOfMemoryError.
BlockInfo charge_block(Ledger& ledger, size_t bytes, Kind kind);
// Throws c10::OutOfMemoryError that says what `ledger` refused last.
[[noreturn]] void throw_refusal(const Ledger& ledger);

}  // namespace moelab
