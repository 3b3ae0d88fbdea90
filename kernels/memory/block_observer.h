#pragma once
#include <cstddef>

namespace moelab {

// Is told of every block that the meta allocator makes on the device's ledger and takes back, in order.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual void allocated(const void* block, size_t bytes) = 0;
  virtual void freed(const void* block) = 0;
  // A graph has captured what was made and taken back until now, and keeps the memory.
  virtual void graph_captured() {}
};
// From now on, one at a time; null: nobody.
void observe_meta_blocks(BlockObserver* observer);
// Tells the observer, if there is one.
void note_captured_graph();

}  // namespace moelab
