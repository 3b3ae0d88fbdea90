#include "train/data/documents.h"

#include <algorithm>

namespace moelab {
namespace {

// The document's last token, at `last`, is only a target.
void cut(int64_t first, int64_t last, int64_t longest, std::vector<Passage>& passages) {
  for (; first < last; first += longest) passages.push_back({first, std::min(longest, last - first)});
}

}  // namespace

std::vector<Passage> cut_documents(const TokenRange& tokens, int64_t end_of_text, int64_t longest) {
  constexpr int64_t kChunk = 1 << 18;
  std::vector<Passage> passages;
  std::vector<int64_t> chunk;
  int64_t document = 0;
  for (int64_t begin = 0; begin < tokens.size(); begin += kChunk) {
    chunk.resize(static_cast<size_t>(std::min(kChunk, tokens.size() - begin)));
    tokens.copy(begin, chunk);
    for (auto end = std::ranges::find(chunk, end_of_text); end != chunk.end();
         end = std::find(end + 1, chunk.end(), end_of_text)) {
      const int64_t last = begin + (end - chunk.begin());
      cut(document, last, longest, passages);
      document = last + 1;
    }
  }
  cut(document, tokens.size() - 1, longest, passages);
  return passages;
}

}  // namespace moelab
