#pragma once
#include <cstdint>
#include <filesystem>
#include <span>

#include "train/files/mapped_file.h"

namespace moelab {

// How a shard's tokens are stored. Both hold little-endian unsigned 16-bit token ids:
//   nanogpt  the ids and nothing else (train.bin of karpathy/nanoGPT)
//   llmc     256 little-endian int32 first: magic 20240520, version 1, the number of ids, zeros
//   (karpathy/llm.c)
enum class ShardFormat : uint8_t { nanogpt, llmc };

// One read-only file of token ids, memory-mapped, so that the page cache and not the heap holds it. The
// format is told by the content.
class Shard {
 public:
  // Opens and checks everything, each id < vocab included (one pass over the file). Throws UserError, with
  // the byte offset where there is one, when the file is missing, empty, truncated, of an odd size, of
  // another format, or has an id that the vocabulary lacks.
  Shard(const std::filesystem::path& path, int64_t vocab);

  const std::filesystem::path& path() const { return file_.path(); }
  ShardFormat format() const { return format_; }
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }  // tokens

  // Copies tokens [first, first + out.size()). Throws UserError when the file was changed since it was
  // opened, as far as its size or an id outside the vocabulary shows it.
  void copy(int64_t first, std::span<int64_t> out) const;

 private:
  void check_ids() const;
  [[noreturn]] void refuse_id(int64_t index) const;

  MappedFile file_;
  int64_t vocab_;
  ShardFormat format_ = ShardFormat::nanogpt;
  std::span<const uint16_t> tokens_;
};

}  // namespace moelab
