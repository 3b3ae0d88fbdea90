#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace moelab {

// A block of memory allocated (bytes > 0) or freed (bytes < 0) while the operator `owner` ran.
struct MemoryEvent {
  const void* block = nullptr;
  int64_t bytes = 0;
  std::string owner;
};

// Bytes over all calls of one operator.
struct OperatorMemory {
  std::string name;
  int64_t at_peak = 0;    // held at the peak, in blocks allocated while it ran
  int64_t allocated = 0;  // in total
};

struct OperatorTable {
  int64_t peak = 0;                       // the highest total of held bytes
  int64_t before = 0;                     // of `peak`, in blocks older than the first event
  std::vector<OperatorMemory> operators;  // sorted by bytes at the peak, then by allocated bytes, descending
};

// Replays `events`, ordered by time, from a total of `held` bytes. A block belongs to the operator that ran
// when it was allocated, whoever frees it. No bytes are counted twice: at_peak and `before` add up to `peak`.
OperatorTable operator_memory(const std::vector<MemoryEvent>& events, int64_t held);

// True if this operator only makes a tensor for its caller, as aten::empty does; its memory counts as the
// caller's.
bool is_factory(const std::string& name);

}  // namespace moelab
