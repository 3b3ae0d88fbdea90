#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "train/io/mapped_file.h"

namespace moelab {

// How a shard stores its tokens, which are little-endian unsigned 16-bit ids:
//   nanogpt  only the ids (train.bin of karpathy/nanoGPT)
//   llmc     after a header of 256 little-endian int32: magic 20240520, version 1, number of ids, zeros
//            (karpathy/llm.c)
enum class ShardFormat : uint8_t { nanogpt, llmc };

// A read-only, memory-mapped file of token ids, held by the page cache rather than the heap. The format is
// detected from the content.
class Shard {
 public:
  // Opens the file and checks everything, including that each id is below vocab (one pass over the file).
  // Throws UserError, with the byte offset where there is one, when the file is missing, empty, truncated, of
  // odd size, of another format, or has an id outside the vocabulary.
  Shard(const std::filesystem::path& path, int64_t vocab);

  const std::filesystem::path& path() const { return file_.path(); }
  ShardFormat format() const { return format_; }
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }  // tokens
  // The largest id; none with a vocabulary that all 16-bit ids are in, for which none is looked at.
  std::optional<int64_t> largest_id() const { return largest_id_; }

  // Copies tokens [first, first + out.size()). Throws UserError if the file changed since it was opened, as
  // far as its size or an id outside the vocabulary shows that.
  void copy(int64_t first, std::span<int64_t> out) const;

 private:
  void check_ids();
  [[noreturn]] void refuse_id(int64_t index) const;

  MappedFile file_;
  int64_t vocab_;
  std::optional<int64_t> largest_id_;
  ShardFormat format_ = ShardFormat::nanogpt;
  std::span<const uint16_t> tokens_;
};

}  // namespace moelab
