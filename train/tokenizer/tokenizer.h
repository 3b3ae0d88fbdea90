#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moelab {

struct BpeModel;

// Token ids to text and back, by the tokenizer.json that travels with shards and checkpoints: bytes (256 ids)
// or byte-level BPE as GPT-2's, in the format of the `tokenizers` package, whose results these are.
// Cheap to copy; safe to use from many threads.
class Tokenizer {
 public:
  // From a tokenizer.json or the folder that holds one. Throws UserError for a missing or damaged file and
  // for whatever would make text differ from the package's, by its name: normalizers, other models,
  // pre-tokenizers and decoders.
  static Tokenizer load(const std::filesystem::path& file_or_folder);

  // The ids of UTF-8 text; an added token ("<|endoftext|>") in it becomes its one id, and nothing is put
  // around it. Bytes that are no UTF-8 count as U+FFFD, as when shards are prepared, but a bytes tokenizer
  // takes them as they are.
  std::vector<int64_t> encode(std::string_view text) const;

  // UTF-8 text. Special tokens and ids that stand for no token give nothing; bytes that are no UTF-8 give
  // U+FFFD, one for each of the longest sequences that could have begun a character.
  std::string decode(std::span<const int64_t> ids) const;

  // The largest id plus one.
  int64_t vocab_size() const;

 private:
  friend class StreamingDecoder;
  explicit Tokenizer(std::shared_ptr<const BpeModel> model);

  std::shared_ptr<const BpeModel> model_;
};

// What ends a document: the names that scripts/prepare_data.py looks for, or the zero byte of a bytes
// tokenizer.
std::optional<int64_t> end_of_text(const Tokenizer& tokenizer);

// decode() an id at a time: what push() and finish() return makes the same text, and no piece of it ends
// within a character.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer);

  // The text that this id completes; empty while a character is under way.
  std::string push(int64_t id);
  // What is left: empty, or U+FFFD for a character that never ended. The decoder then begins anew.
  std::string finish();

 private:
  std::shared_ptr<const BpeModel> model_;
  std::string pending_;  // the beginning of a character, at most 3 bytes
};

}  // namespace moelab
