#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/data/shard.h"

namespace moelab {

// Consecutive tokens of a list of shards, read as one stream. Cheap to copy.
class TokenRange {
 public:
  TokenRange() = default;
  explicit TokenRange(std::vector<std::shared_ptr<const Shard>> shards);

  int64_t size() const { return end_ - begin_; }  // tokens
  // Number of windows of `sequence` tokens plus the token that follows. They start `sequence` tokens apart:
  // the shared token is the last target of one window and the first input of the next.
  int64_t windows(int64_t sequence) const { return size() > sequence ? (size() - 1) / sequence : 0; }

  // The largest id in its shards, whether this range has it or not; none where shards did not look.
  std::optional<int64_t> largest_id() const;

  // Tokens [first, first + count) of this range. Throws std::out_of_range.
  TokenRange part(int64_t first, int64_t count) const;
  // Copies tokens [first, first + out.size()). Throws UserError when a shard became unreadable.
  void copy(int64_t first, std::span<int64_t> out) const;

 private:
  std::vector<std::shared_ptr<const Shard>> shards_;
  std::vector<int64_t> starts_;  // first token of each shard in the whole stream
  int64_t begin_ = 0, end_ = 0;
};

// One source of a mix.
struct Source {
  std::string name;   // the folder or file, for messages
  double weight = 1;  // relative to the other sources'; > 0
  TokenRange tokens;
};

// Training and validation data of a run.
struct Dataset {
  std::vector<Source> train;       // at least one window each
  std::vector<Source> validation;  // at least one window each; shares no token with `train`
  // tokenizer.json beside the shards; it decodes these ids to text.
  std::optional<std::filesystem::path> tokenizer;
};

// Opens and checks all shards of `path`: a folder, a file, or a weighted mix of them, "0.7*DIR1,0.3*DIR2"
// (weights are relative and need not sum to 1). In a folder train*.bin are for training and val*.bin for
// validation; a folder with neither trains on all of its *.bin. `validation` has the same syntax; if not
// empty, it replaces every val*.bin. A source without validation data gives up the last 5 % of its tokens, at
// least one sequence, which are then not trained on. Throws UserError for missing, empty or damaged data, for
// sources whose tokenizers differ, and for a source too short for one sequence of `sequence` tokens and its
// last target.
Dataset open_dataset(const std::string& path, const std::string& validation, int64_t vocab, int64_t sequence);

}  // namespace moelab
