#include "train/data/packing.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace moelab {
namespace {

double mean(const std::vector<int64_t>& lengths) {
  return static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})) /
         static_cast<double>(lengths.size());
}

// SampleOrder counts passages, while the sources' weights are by tokens; dividing by the mean length converts
// them.
SampleOrder order_of(const std::vector<PackedOrder::Source>& sources, int64_t row, int64_t seed) {
  std::vector<double> weights;
  std::vector<int64_t> passages;
  for (const PackedOrder::Source& source : sources) {
    const bool fit = std::ranges::all_of(source.lengths, [&](int64_t n) { return n >= 1 && n <= row; });
    if (!fit || source.lengths.empty())
      throw std::invalid_argument("PackedOrder of passages that fit no row");
    weights.push_back(source.weight / mean(source.lengths));
    passages.push_back(static_cast<int64_t>(source.lengths.size()));
  }
  return {weights, passages, seed};
}

}  // namespace

PackedOrder::PackedOrder(std::vector<Source> sources, int64_t row, int64_t buffer, int64_t seed)
    : sources_(std::move(sources)),
      order_(order_of(sources_, row, seed)),
      row_(row),
      seed_(static_cast<uint64_t>(seed)) {
  int64_t passages = 0;
  for (const Source& source : sources_) passages += static_cast<int64_t>(source.lengths.size());
  buffer_ = std::min(buffer, passages);
  if (buffer_ < 1) throw std::invalid_argument("PackedOrder of an empty buffer");
}

PackedOrder::Rows PackedOrder::pack(int64_t buffer) const {
  std::vector<Sample> passages;
  passages.reserve(static_cast<size_t>(buffer_));
  for (int64_t n = buffer * buffer_; n < (buffer + 1) * buffer_; ++n) passages.push_back(order_.at(n));
  std::ranges::stable_sort(passages, std::ranges::greater(),
                           [this](const Sample& passage) { return length(passage); });
  Rows rows;
  std::multimap<int64_t, size_t> open;  // rows by the room left in them
  for (const Sample& passage : passages) {
    const int64_t tokens = length(passage);
    auto best = open.lower_bound(tokens);
    if (best == open.end()) {
      best = open.emplace(row_, rows.size());
      rows.emplace_back();
    }
    Row& row = rows[best->second];
    row.passages.push_back(passage);
    row.filled += tokens;
    auto node = open.extract(best);
    node.key() -= tokens;
    if (node.key() > 0) open.insert(std::move(node));
  }
  // Best fit puts the longest passages in the first rows, so shuffle.
  const Permutation shuffled(rows.size(), seed_ * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(buffer));
  Rows result;
  for (size_t i = 0; i < rows.size(); ++i) result.push_back(std::move(rows[shuffled(i)]));
  return result;
}

std::shared_ptr<const PackedOrder::Rows> PackedOrder::packed(int64_t buffer) const {
  constexpr size_t kInMemory = 4;  // enough for workers that read ahead or lag behind
  if (const auto found = in_memory_.find(buffer); found != in_memory_.end()) return found->second;
  auto rows = std::make_shared<const Rows>(pack(buffer));
  if (in_memory_.size() == kInMemory) in_memory_.erase(in_memory_.begin());
  in_memory_[buffer] = rows;
  return rows;
}

PackedOrder::Row PackedOrder::row(int64_t n) const {
  if (n < 0) throw std::invalid_argument("PackedOrder: a row before the first");
  const std::lock_guard lock(mutex_);
  while (starts_.back() <= n) {
    const auto next = static_cast<int64_t>(starts_.size()) - 1;
    starts_.push_back(starts_.back() + static_cast<int64_t>(packed(next)->size()));
  }
  const auto after = std::ranges::upper_bound(starts_, n);
  const int64_t buffer = after - starts_.begin() - 1;
  return (*packed(buffer))[static_cast<size_t>(n - starts_[static_cast<size_t>(buffer)])];
}

int64_t PackedOrder::filled(int64_t first, int64_t count) const {
  int64_t tokens = 0;
  for (int64_t n = first; n < first + count; ++n) tokens += row(n).filled;
  return tokens;
}

}  // namespace moelab
