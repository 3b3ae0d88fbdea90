#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// The safetensors format (https://github.com/huggingface/safetensors): 8 bytes of little-endian header length
// N, N bytes of JSON beginning with '{' and padded with spaces, then the tensors' bytes without holes. This
// file handles the format only, without files or LibTorch, so that it can be fuzzed. Input is not trusted:
// every length is checked before use, and every sum and product for overflow.
namespace moelab {

enum class SafetensorsType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2
};
inline constexpr size_t kSafetensorsTypes = 12;

// The name in the file: F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL, F8_E4M3, F8_E5M2.
std::string_view type_name(SafetensorsType type);
std::optional<SafetensorsType> parse_type(std::string_view name);
size_t type_bytes(SafetensorsType type);

// One tensor; [begin, end) in bytes from the end of the header. Row-major.
struct SafetensorsInfo {
  std::string name;
  SafetensorsType type = SafetensorsType::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

// "F32 [2, 3]"
std::string describe(SafetensorsType type, std::span<const int64_t> shape);
// A name as it may appear in a message: quoted, cut at 100 bytes, control characters replaced.
std::string in_quotes(std::string_view name);

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsInfo> tensors;  // in the order of their bytes
  SafetensorsMetadata metadata;          // __metadata__
  uint64_t data_offset = 0;              // where the tensors' bytes begin in the file

  const SafetensorsInfo* find(const std::string& name) const;  // null: no such tensor
  std::unordered_map<std::string, size_t> index;               // name -> position in tensors
};

// Limits: the reference implementation's for the header, our own for its content.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr size_t kMaxSafetensors = 1'000'000;
inline constexpr size_t kMaxSafetensorsMetadata = 65'536;
inline constexpr size_t kMaxSafetensorsRank = 64;

// Reads and checks the header of a whole file. Guarantees: names are unique; each tensor's bytes match its
// shape and type; the tensors fill the data from data_offset to the end of `file`, without gap or overlap (a
// tensor without elements has no bytes). Throws UserError, beginning with `file_name`.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view file_name);

// The beginning of a new file, and the order in which the tensors' bytes follow.
struct SafetensorsLayout {
  std::string head;  // length, JSON and padding
  std::vector<SafetensorsInfo>
      tensors;  // sorted by size of type, largest first, then by name, which aligns every tensor to its type
};

// `tensors` in any order; their begin and end are ignored. Throws UserError for what no reader would accept:
// names that repeat, are not UTF-8 or are __metadata__, shapes that overflow, or more than the limits above.
SafetensorsLayout layout_safetensors(std::vector<SafetensorsInfo> tensors,
                                     const SafetensorsMetadata& metadata);

}  // namespace moelab
