#include "train/data/shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "moe/settings/error.h"

namespace moelab {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are read in place as little-endian numbers");

constexpr int32_t kMagic = 20240520;
constexpr int32_t kMagic32 = 20240801;  // llm.c's shards with 32-bit ids
constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);
// Ids have 16 bits, so a vocabulary of this size or more admits all of them.
constexpr int64_t kAllIds = 1 << 16;

using Bytes = std::span<const std::byte>;

std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

template <class T>
T number_at(Bytes bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// First bytes of other file types. A file of token ids has them with a probability below one in a million.
struct Foreign {
  std::string_view start, name;
};
constexpr std::array<Foreign, 9> kForeign = {{
    {"\x7f"
     "ELF",
     "a program (ELF)"},
    {"\x93NUMPY", "a NumPy array (.npy)"},
    {"PK\x03\x04", "a zip archive"},
    {"\x1f\x8b\x08", "a gzip archive"},
    {"\x28\xb5\x2f\xfd", "a zstd archive"},
    {"PAR1", "a Parquet file"},
    {"ARROW1", "an Arrow file"},
    {"MMIDIDX", "a Megatron index"},
    {"GGUF", "a GGUF model"},
}};

// safetensors: the JSON header's length as a 64-bit number, then the header.
bool looks_like_safetensors(Bytes bytes) {
  if (bytes.size() < 10) return false;
  const auto header = number_at<uint64_t>(bytes, 0);
  return header >= 2 && header <= bytes.size() - 8 && as_text(bytes)[8] == '{';
}

// True for printable bytes and white space without control bytes. Sixteen in a row do not occur by chance in
// ids: an id below 8192 has a control byte as its upper half, and larger ids leave the printable range too
// often. Bytes from 0x80 on (UTF-8) are weaker evidence, so they count only in text of 1024 bytes or more.
bool looks_like_text(std::string_view text) {
  constexpr size_t kEnough = 16, kEnoughUtf8 = 1024, kSample = 4096;
  text = text.substr(0, kSample);
  if (text.size() < kEnough) return false;
  const bool utf8 = text.size() >= kEnoughUtf8;
  return std::ranges::all_of(text, [utf8](unsigned char c) {
    return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\r' || c == '\t' || (utf8 && c >= 0x80);
  });
}

std::string_view foreign_name(Bytes bytes) {
  const std::string_view text = as_text(bytes);
  for (const Foreign& kind : kForeign)
    if (text.starts_with(kind.start)) return kind.name;
  if (looks_like_safetensors(bytes)) return "a safetensors file";
  if (!looks_like_text(text)) return {};
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && (text[first] == '{' || text[first] == '[') ? "JSON" : "text";
}

void refuse_foreign(const MappedFile& file) {
  const std::string_view name = foreign_name(file.bytes());
  if (name.empty()) return;
  throw UserError(file.path().string() + ": this is " + std::string(name) +
                  ", not a shard of 16-bit token ids; scripts/prepare_data.py makes shards");
}

// A text of few bytes is not told from ids.
std::string text_hint(const std::filesystem::path& path) {
  return path.extension() == ".bin" ? "" : "; if this is a text, scripts/prepare_data.py makes shards of it";
}

// Byte offset where the ids begin. Checks the header against the file's size.
size_t check_header(const MappedFile& file) {
  const std::string name = file.path().string();
  const Bytes bytes = file.bytes();
  if (bytes.size() < kHeaderBytes)
    throw UserError(name + ": truncated at byte " + std::to_string(bytes.size()) +
                    ", inside llm.c's header of " + std::to_string(kHeaderBytes) + " bytes");
  const auto version = number_at<int32_t>(bytes, 4);
  if (version != 1)
    throw UserError(name + ": llm.c shard of version " + std::to_string(version) +
                    " at byte 4; version 1 is read");
  const auto count = number_at<int32_t>(bytes, 8);
  if (count <= 0)
    throw UserError(name + ": the header's token count at byte 8 is " + std::to_string(count) +
                    "; it must be at least 1");
  const size_t expected = kHeaderBytes + static_cast<size_t>(count) * sizeof(uint16_t);
  if (bytes.size() != expected)
    throw UserError(name + (bytes.size() < expected ? ": truncated: " : ": too long: ") +
                    std::to_string(bytes.size()) + " bytes, but the header's " + std::to_string(count) +
                    " tokens make " + std::to_string(expected));
  return kHeaderBytes;
}

// Byte offset where the ids begin; 0 if there is no header.
size_t find_tokens(const MappedFile& file) {
  const Bytes bytes = file.bytes();
  if (bytes.empty())
    throw UserError(file.path().string() + ": empty file; a shard holds at least one 16-bit token id");
  const auto magic = bytes.size() >= 4 ? number_at<int32_t>(bytes, 0) : 0;
  if (magic == kMagic) return check_header(file);
  if (magic == kMagic32)
    throw UserError(file.path().string() + ": llm.c shard of 32-bit token ids; only 16-bit ids are read");
  refuse_foreign(file);
  if (bytes.size() % 2 != 0)
    throw UserError(file.path().string() + ": odd size of " + std::to_string(bytes.size()) +
                    " bytes; 16-bit token ids take an even number (truncated?)" + text_hint(file.path()));
  return 0;
}

}  // namespace

Shard::Shard(const std::filesystem::path& path, int64_t vocab) : file_(path), vocab_(vocab) {
  const size_t offset = find_tokens(file_);
  format_ = offset == 0 ? ShardFormat::nanogpt : ShardFormat::llmc;
  const Bytes body = file_.bytes().subspan(offset);
  tokens_ = {reinterpret_cast<const uint16_t*>(body.data()), body.size() / sizeof(uint16_t)};
  if (vocab_ < kAllIds) check_ids();
}

// Finds each chunk's largest id, a loop that vectorises; looks for a position only if the largest is too
// large.
void Shard::check_ids() {
  constexpr size_t kChunk = 1 << 14;
  uint16_t of_all = 0;
  for (size_t begin = 0; begin < tokens_.size(); begin += kChunk) {
    const auto chunk = tokens_.subspan(begin, std::min(kChunk, tokens_.size() - begin));
    uint16_t largest = 0;
    for (const uint16_t id : chunk) largest = std::max(largest, id);
    of_all = std::max(of_all, largest);
  }
  largest_id_ = of_all;
  if (of_all < vocab_) return;
  const auto at = std::ranges::find_if(tokens_, [this](uint16_t id) { return id >= vocab_; });
  refuse_id(at - tokens_.begin());
}

void Shard::refuse_id(int64_t index) const {
  const size_t header = format_ == ShardFormat::llmc ? kHeaderBytes : 0;
  const auto id = tokens_[static_cast<size_t>(index)];
  throw UserError(path().string() + ": token id " + std::to_string(id) + " at byte " +
                  std::to_string(header + static_cast<size_t>(index) * sizeof(uint16_t)) +
                  " is outside model.vocab=" + std::to_string(vocab_) +
                  (largest_id_ ? ", and the largest is " + std::to_string(*largest_id_) : "") +
                  "; set model.vocab to the tokenizer's size, or use the shards of this vocabulary" +
                  text_hint(path()));
}

void Shard::copy(int64_t first, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || count > size() || first > size() - count)
    throw std::out_of_range("Shard::copy past the end of " + path().string());
  file_.check_unchanged();
  const auto from = tokens_.subspan(static_cast<size_t>(first), out.size());
  int64_t largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = from[i];
    largest = std::max(largest, out[i]);
  }
  if (largest < vocab_) return;
  const auto at = std::ranges::find_if(out, [this](int64_t id) { return id >= vocab_; });
  refuse_id(first + (at - out.begin()));
}

}  // namespace moelab
