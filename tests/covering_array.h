#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace moelab::test {

using Levels = std::vector<size_t>;  // a level of each factor

// Rows that hold every valid combination of the levels of any three factors (a covering array of strength 3;
// Cohen 1997, "The AETG system"): greedily, each row the best of some random valid ones. A combination that
// no random valid row has counts as impossible. Deterministic.
class CoveringArray {
 public:
  // counts: levels of each factor.
  CoveringArray(std::vector<size_t> counts, const std::function<bool(const Levels&)>& valid)
      : counts_(std::move(counts)) {
    std::vector<Levels> pool;
    for (int tries = 0; tries < 40000 && pool.size() < 5000; ++tries) {
      Levels row;
      for (const size_t count : counts_) row.push_back(random_() % count);
      if (valid(row)) pool.push_back(row);
    }
    for (const Levels& row : pool) {
      for (const Triple& triple : triples_of(row)) missing_.insert(triple);
    }
    combinations_ = missing_.size();
    while (!missing_.empty()) {
      const Levels* best = nullptr;
      size_t most = 0;
      // once little is missing, few rows have it: all of them are looked at
      const size_t looked_at = missing_.size() * 20 > combinations_ ? 60 : pool.size();
      for (size_t i = 0; i < looked_at; ++i) {
        const Levels& row = looked_at == pool.size() ? pool[i] : pool[random_() % pool.size()];
        if (const size_t found = missing_in(row); found > most) {
          most = found;
          best = &row;
        }
      }
      if (best == nullptr) continue;
      rows_.push_back(*best);
      for (const Triple& triple : triples_of(*best)) missing_.erase(triple);
    }
  }

  const std::vector<Levels>& rows() const { return rows_; }
  size_t combinations() const { return combinations_; }

 private:
  using Triple = std::array<uint8_t, 6>;  // three factors and their levels
  std::vector<Triple> triples_of(const Levels& row) const {
    std::vector<Triple> triples;
    const auto byte = [](size_t i) { return static_cast<uint8_t>(i); };
    for (size_t a = 0; a < row.size(); ++a)
      for (size_t b = a + 1; b < row.size(); ++b)
        for (size_t c = b + 1; c < row.size(); ++c)
          triples.push_back({byte(a), byte(b), byte(c), byte(row[a]), byte(row[b]), byte(row[c])});
    return triples;
  }
  size_t missing_in(const Levels& row) const {
    const std::vector<Triple> triples = triples_of(row);
    return std::count_if(triples.begin(), triples.end(),
                         [&](const Triple& t) { return missing_.contains(t); });
  }

  std::vector<size_t> counts_;
  std::mt19937_64 random_{1};
  std::set<Triple> missing_;
  size_t combinations_ = 0;
  std::vector<Levels> rows_;
};

}  // namespace moelab::test
