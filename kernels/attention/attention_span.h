#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

namespace moelab {

// Which keys each query sees, on top of the causal rule (no later position). Positions form blocks of
// `block`, counted from the sequence's first: a query sees its own block, up to itself, and all of the
// `blocks` - 1 blocks before it. There is no global token. Blocks of one position are a sliding window of
// `blocks` tokens, the query's own included (Longformer, arXiv 2004.05150; Mistral, 2310.06825).
struct AttentionSpan {
  int64_t block = 1;
  int64_t blocks = std::numeric_limits<int64_t>::max();  // everything

  // The first position that a query sees.
  int64_t first(int64_t query) const {
    const int64_t before = query / block + 1 - blocks;  // blocks that it does not see
    return before > 0 ? before * block : 0;
  }

  // The first position that a query sees if its document begins at `start` of its row: blocks are counted
  // from there, and nothing before it is seen. Padding (a negative start) sees itself alone.
  int64_t first(int64_t query, int64_t start) const {
    return start < 0 ? query : start + first(query - start);
  }

  // A lower bound of first(query, start) for every start.
  int64_t earliest(int64_t query) const { return blocks > query / block ? 0 : query + 1 - block * blocks; }

  // Equivalent span for documents of at most `longest` positions: it looks back no further than such a
  // document is long.
  AttentionSpan of_documents(int64_t longest) const {
    return covers(longest) ? AttentionSpan{1, longest} : *this;
  }

  // Whether each of S positions sees all positions before it.
  bool covers(int64_t S) const { return S == 0 || first(S - 1) == 0; }

  // Number of pairs (query, key that it sees) among S positions.
  double pairs(int64_t S) const {
    double seen = 0.5 * static_cast<double>(S) * static_cast<double>(S + 1);
    if (covers(S)) return seen;
    for (int64_t i = 0; i < S; i += block) {
      seen -= static_cast<double>(std::min(block, S - i)) * static_cast<double>(first(i));
    }
    return seen;
  }
};

}  // namespace moelab
