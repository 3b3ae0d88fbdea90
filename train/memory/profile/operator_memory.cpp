#include "train/memory/profile/operator_memory.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace moelab {
namespace {

struct Block {
  size_t owner = 0;
  int64_t bytes = 0;
};

// The blocks held now, and each operator's bytes in them.
class Replay {
 public:
  explicit Replay(int64_t held) : held_(held), before_(held) { keep_peak(); }

  void add(const MemoryEvent& event) {
    if (event.bytes > 0) {
      allocate(event);
    } else {
      release(event);
    }
    if (held_ > table_.peak) keep_peak();
  }

  OperatorTable table() {
    for (const OperatorMemory& op : operators_) table_.operators.push_back(op);
    for (size_t i = 0; i < at_peak_.size(); ++i) table_.operators[i].at_peak = at_peak_[i];
    std::sort(table_.operators.begin(), table_.operators.end(), [](const auto& a, const auto& b) {
      return std::tie(b.at_peak, b.allocated, a.name) < std::tie(a.at_peak, a.allocated, b.name);
    });
    return table_;
  }

 private:
  void allocate(const MemoryEvent& event) {
    const auto [found, is_new] = index_.try_emplace(event.owner, operators_.size());
    if (is_new) {
      operators_.push_back({.name = event.owner});
      now_.push_back(0);
    }
    const size_t owner = found->second;
    blocks_[event.block] = {owner, event.bytes};
    operators_[owner].allocated += event.bytes;
    now_[owner] += event.bytes;
    held_ += event.bytes;
  }

  void release(const MemoryEvent& event) {
    held_ += event.bytes;
    const auto found = blocks_.find(event.block);
    if (found == blocks_.end()) {
      before_ += event.bytes;
      return;
    }
    now_[found->second.owner] -= found->second.bytes;
    blocks_.erase(found);
  }

  void keep_peak() {
    table_.peak = held_;
    table_.before = before_;
    at_peak_ = now_;
  }

  int64_t held_, before_;
  OperatorTable table_;
  std::unordered_map<std::string, size_t> index_;  // into the three below
  std::vector<OperatorMemory> operators_;
  std::vector<int64_t> now_, at_peak_;
  std::unordered_map<const void*, Block> blocks_;
};

}  // namespace

OperatorTable operator_memory(const std::vector<MemoryEvent>& events, int64_t held) {
  Replay replay(held);
  for (const MemoryEvent& event : events) replay.add(event);
  return replay.table();
}

bool is_factory(const std::string& name) {
  constexpr std::array<std::string_view, 13> kFactories = {
      "aten::empty",      "aten::empty_like",        "aten::empty_strided",
      "aten::new_empty",  "aten::new_empty_strided", "aten::zeros",
      "aten::zeros_like", "aten::new_zeros",         "aten::full",
      "aten::full_like",  "aten::ones_like",         "aten::ones",
      "aten::resize_"};
  return std::find(kFactories.begin(), kFactories.end(), name) != kFactories.end();
}

}  // namespace moelab
