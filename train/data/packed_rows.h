#pragma once
#include <memory>
#include <vector>

#include "train/data/documents.h"
#include "train/data/packing.h"
#include "train/data/rows.h"

namespace moelab {

struct PackingOptions {
  int64_t row = 1;          // tokens per row
  int64_t longest = 1;      // longer documents are cut after this many tokens; at most `row`
  int64_t buffer = 1;       // number of passages that are packed together
  int64_t end_of_text = 0;  // the token that ends a document
  int64_t seed = 1;
  bool pinned = false;  // page-locked memory, for copies to a GPU
};

// Rows of whole documents, or passages of documents that are too long, packed one after another and padded at
// the end.
class PackedRows : public RowSource {
 public:
  // Throws UserError for a source without a document of at least two tokens.
  PackedRows(std::vector<Source> sources, const PackingOptions& options);

  Batch allocate(int64_t count) const override;
  bool fill(int64_t first, Batch& batch, const std::function<bool()>& stop) const override;
  int64_t filled(int64_t first, int64_t count) const override { return order_->filled(first, count); }

 private:
  std::vector<Source> sources_;
  PackingOptions options_;
  std::vector<std::vector<Passage>> passages_;  // of each source
  std::unique_ptr<PackedOrder> order_;
};

}  // namespace moelab
