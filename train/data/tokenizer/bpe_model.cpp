#include "train/data/tokenizer/bpe_model.h"

#include <functional>
#include <queue>
#include <tuple>

namespace moelab {
namespace {

constexpr int64_t kNone = -1;

// A word as a linked list of symbols. A merge stores its id in the left symbol and unlinks the right one.
class Word {
 public:
  Word(const BpeModel& model, std::string_view word) : model_(model) {
    for (const char c : word) {
      const int32_t id = model.byte_ids[static_cast<uint8_t>(c)];
      if (id < 0) continue;
      const int64_t at = static_cast<int64_t>(symbols_.size());
      symbols_.push_back({id, at - 1, at + 1});
    }
    if (!symbols_.empty()) symbols_.back().next = kNone;
  }

  void merge() {
    for (const Symbol& symbol : symbols_) consider(symbol.previous);
    while (!queue_.empty()) {
      const auto [rank, at, id] = queue_.top();
      queue_.pop();
      if (still_stands(at, id)) join(at, id);
    }
  }

  void append_to(std::vector<int64_t>& ids) const {
    if (symbols_.empty()) return;
    for (int64_t at = 0; at != kNone; at = symbols_[at].next) ids.push_back(symbols_[at].id);
  }

 private:
  struct Symbol {
    int32_t id;  // kNone: merged into a symbol on its left
    int64_t previous, next;
  };
  using Candidate = std::tuple<uint32_t, int64_t, int32_t>;  // rank, left symbol, id of the merged token

  // The merge of the symbol at `left` with the next one, or null.
  const BpeModel::Merge* merge_at(int64_t left) const {
    const Symbol& symbol = symbols_[left];
    if (symbol.id == kNone || symbol.next == kNone) return nullptr;
    const auto found = model_.merges.find(BpeModel::pair(symbol.id, symbols_[symbol.next].id));
    return found == model_.merges.end() ? nullptr : &found->second;
  }

  void consider(int64_t left) {
    if (left == kNone) return;
    if (const BpeModel::Merge* merge = merge_at(left)) queue_.emplace(merge->rank, left, merge->id);
  }

  // The symbols may have changed since the candidate was queued. Like the `tokenizers` package, accepts a
  // different pair that merges to the same id.
  bool still_stands(int64_t left, int32_t id) const {
    const BpeModel::Merge* merge = merge_at(left);
    return merge && merge->id == id;
  }

  void join(int64_t left, int32_t id) {
    Symbol& symbol = symbols_[left];
    Symbol& right = symbols_[symbol.next];
    symbol.id = id;
    symbol.next = right.next;
    right.id = kNone;
    if (symbol.next != kNone) symbols_[symbol.next].previous = left;
    consider(symbol.previous);
    consider(left);
  }

  const BpeModel& model_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

}  // namespace

void append_word(const BpeModel& model, std::string_view word, std::vector<int64_t>& ids) {
  Word symbols(model, word);
  symbols.merge();
  symbols.append_to(ids);
}

}  // namespace moelab
