#include "train/data/packed_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "kernels/attention/document_attention.h"
#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"

namespace moelab {
namespace {

// Writes one row, position by position.
struct Cursor {
  int64_t *tokens, *targets;
  int32_t* documents;
  int32_t place = 0;

  void add(const TokenRange& from, const Passage& passage, std::vector<int64_t>& window) {
    window.resize(static_cast<size_t>(passage.tokens) + 1);
    from.copy(passage.first, window);
    std::copy(window.begin(), window.end() - 1, tokens + place);
    std::copy(window.begin() + 1, window.end(), targets + place);
    std::fill_n(documents + place, passage.tokens, place);
    place += static_cast<int32_t>(passage.tokens);
  }
};

}  // namespace

PackedRows::PackedRows(std::vector<Source> sources, const PackingOptions& options)
    : sources_(std::move(sources)), options_(options) {
  std::vector<PackedOrder::Source> lengths;
  for (const Source& source : sources_) {
    passages_.push_back(cut_documents(source.tokens, options.end_of_text, options.longest));
    if (passages_.back().empty())
      throw UserError(source.name + " has no document of two tokens or more (a document ends with token " +
                      std::to_string(options.end_of_text) + ")");
    lengths.push_back({source.weight, {}});
    for (const Passage& passage : passages_.back()) lengths.back().lengths.push_back(passage.tokens);
  }
  order_ = std::make_unique<PackedOrder>(std::move(lengths), options.row, options.buffer, options.seed);
}

Batch PackedRows::allocate(int64_t count) const {
  const HomeScope outside_the_budget(Home::host);
  const auto host = at::TensorOptions().pinned_memory(options_.pinned);
  const auto rows = [&](at::ScalarType type) { return at::empty({count, options_.row}, host.dtype(type)); };
  return {rows(at::kLong), rows(at::kLong), rows(at::kInt)};
}

bool PackedRows::fill(int64_t first, Batch& batch, const std::function<bool()>& stop) const {
  batch.tokens.zero_();
  batch.targets.fill_(-1);
  batch.documents.fill_(-1);
  Cursor row{batch.tokens.mutable_data_ptr<int64_t>(), batch.targets.mutable_data_ptr<int64_t>(),
             batch.documents.mutable_data_ptr<int32_t>()};
  std::vector<int64_t> window;
  batch.filled = 0;
  for (int64_t n = first; n < first + batch.tokens.size(0); ++n) {
    if (stop()) return false;
    for (const Sample& sample : order_->row(n).passages)
      row.add(sources_[sample.source].tokens, passages_[sample.source][static_cast<size_t>(sample.window)],
              window);
    batch.filled += row.place;
    row = {row.tokens + options_.row, row.targets + options_.row, row.documents + options_.row};
  }
  batch.room = document_room(batch.documents, options_.longest);
  return true;
}

}  // namespace moelab
