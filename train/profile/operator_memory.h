#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace moelab {

// A block of memory that came (bytes > 0) or went (bytes < 0) while `owner`, an operator, ran.
struct MemoryEvent {
  const void* block = nullptr;
  int64_t bytes = 0;
  std::string owner;
};

// Bytes of all calls of one operator.
struct OperatorMemory {
  std::string name;
  int64_t at_peak = 0;    // held at the highest moment, in blocks that came while it ran
  int64_t allocated = 0;  // in all
};

struct OperatorTable {
  int64_t peak = 0;                       // the highest total
  int64_t before = 0;                     // of it, in blocks older than the first event
  std::vector<OperatorMemory> operators;  // most at the peak first, then most allocated
};

// Replays `events`, in order of time, from a total of `held` bytes: a block belongs to the operator during
// which it came, whoever frees it. No operator's bytes are counted twice: at_peak and `before` add up to
// `peak`.
OperatorTable operator_memory(const std::vector<MemoryEvent>& events, int64_t held);

// Does this operator only make a tensor for the one that called it, as aten::empty does? Its memory is the
// caller's.
bool is_factory(const std::string& name);

}  // namespace moelab
