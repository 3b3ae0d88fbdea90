#pragma once
#include <cstddef>

namespace moelab {

// Is told, in order, of every block that the meta allocator allocates and frees on the device's ledger.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual void allocated(const void* block, size_t bytes) = 0;
  virtual void freed(const void* block) = 0;
  // A CUDA graph has captured all allocations until now, and keeps their memory.
  virtual void graph_captured() {}
};
// Sets the observer; there is one at a time. null: none.
void observe_meta_blocks(BlockObserver* observer);
// Calls the observer's graph_captured(), if there is one.
void note_captured_graph();

}  // namespace moelab
