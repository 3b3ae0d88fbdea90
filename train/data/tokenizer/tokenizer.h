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

// Converts text to token ids and back with the tokenizer.json that accompanies shards and checkpoints: bytes
// (256 ids) or byte-level BPE as in GPT-2. Format and results are those of the `tokenizers` package. Cheap to
// copy; thread-safe.
class Tokenizer {
 public:
  // Loads a tokenizer.json, or the one in a folder. Throws UserError for a missing or damaged file, and for
  // any component that would make results differ from the package's (normalizers, other models,
  // pre-tokenizers and decoders), naming it.
  static Tokenizer load(const std::filesystem::path& file_or_folder);

  // The ids of UTF-8 text. An added token ("<|endoftext|>") in the text becomes its one id; no tokens are put
  // around the text. Invalid UTF-8 bytes become U+FFFD, as when shards are prepared, except that a bytes
  // tokenizer takes all bytes as they are.
  std::vector<int64_t> encode(std::string_view text) const;

  // UTF-8 text. Special tokens and unused ids give nothing. Invalid UTF-8 gives U+FFFD, one for each longest
  // sequence that could begin a character.
  std::string decode(std::span<const int64_t> ids) const;

  // The largest id plus one.
  int64_t vocab_size() const;

  // Whether it has exactly 256 ids, each for the byte of that value.
  bool bytes_alone() const;

 private:
  friend class StreamingDecoder;
  explicit Tokenizer(std::shared_ptr<const BpeModel> model);

  std::shared_ptr<const BpeModel> model_;
};

// The token that ends a document: a name that scripts/prepare_data.py looks for, or the zero byte of a bytes
// tokenizer.
std::optional<int64_t> end_of_text(const Tokenizer& tokenizer);

// decode() one id at a time: the concatenated results of push() and finish() equal decode()'s, and no piece
// ends within a character.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer);

  // The text that this id completes; empty while a character is incomplete.
  std::string push(int64_t id);
  // The rest: empty, or U+FFFD for an incomplete character. Resets the decoder.
  std::string finish();

 private:
  std::shared_ptr<const BpeModel> model_;
  std::string pending_;  // an incomplete character, at most 3 bytes
};

}  // namespace moelab
