#include "train/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "moe/settings/error.h"

namespace moelab {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and read in place");

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kLengthBytes = 8;

struct TypeRow {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<TypeRow, kSafetensorsTypes> kTypes{{{"F64", 8},
                                                         {"F32", 4},
                                                         {"F16", 2},
                                                         {"BF16", 2},
                                                         {"I64", 8},
                                                         {"I32", 4},
                                                         {"I16", 2},
                                                         {"I8", 1},
                                                         {"U8", 1},
                                                         {"BOOL", 1},
                                                         {"F8_E4M3", 1},
                                                         {"F8_E5M2", 1}}};

const TypeRow& row(SafetensorsType type) { return kTypes.at(static_cast<size_t>(type)); }

// Bytes of a tensor; none if they, or a stride, exceed 2^63 - 1. An axis of length 0 counts as 1 in that
// check, because LibTorch multiplies the other lengths into strides.
std::optional<uint64_t> tensor_bytes(SafetensorsType type, std::span<const int64_t> shape) {
  int64_t extent = static_cast<int64_t>(type_bytes(type));
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(extent, std::max<int64_t>(size, 1), &extent)) return std::nullopt;
    empty |= size == 0;
  }
  return empty ? 0 : static_cast<uint64_t>(extent);
}

// Receives the header's JSON token by token. A token that the format does not have at that place ends the
// parse. So nesting never goes deeper than root, tensor, list, and only wanted values are stored.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a number that is no integer below 2^64");
  }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(size_t) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail("no JSON at byte " + std::to_string(position) + " of the header");
  }

 private:
  enum class Place { start, root, metadata, tensor, shape, offsets, end };
  enum class Field { none, dtype, shape, offsets };

  bool fail(std::string message) {
    if (error.empty()) error = std::move(message);
    return false;
  }
  bool refuse(std::string_view what) {
    return fail("the header has " + std::string(what) + " at a place where the format has none" + where());
  }
  std::string where() const {
    if (place_ == Place::start || place_ == Place::root || header.tensors.empty()) return "";
    return place_ == Place::metadata ? " (__metadata__)"
                                     : " (tensor " + in_quotes(header.tensors.back().name) + ")";
  }
  bool field_key(std::string_view name);
  bool begin_tensor(std::string name);

  Place place_ = Place::start;
  Field field_ = Field::none;   // of the current tensor; its value comes next
  bool metadata_next_ = false;  // the root's key was __metadata__
  bool metadata_seen_ = false;
  std::string metadata_key_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<uint64_t> offsets_;
};

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::start) {
    place_ = Place::root;
    return true;
  }
  if (place_ != Place::root) return refuse("an object");
  place_ = metadata_next_ ? Place::metadata : Place::tensor;
  return true;
}

bool HeaderReader::key(string_t& value) {
  switch (place_) {
    case Place::root:
      metadata_next_ = value == kMetadataKey;
      if (!metadata_next_) return begin_tensor(std::move(value));
      if (metadata_seen_) return fail("__metadata__ appears twice");
      return metadata_seen_ = true;
    case Place::metadata:
      if (header.metadata.contains(value))
        return fail("__metadata__ has the key " + in_quotes(value) + " twice");
      metadata_key_ = std::move(value);
      return true;
    case Place::tensor:
      return field_key(value);
    default:
      return refuse("a key");
  }
}

bool HeaderReader::begin_tensor(std::string name) {
  if (header.tensors.size() >= kMaxSafetensors) {
    return fail("more than " + std::to_string(kMaxSafetensors) + " tensors");
  }
  if (!header.index.emplace(name, 0).second) return fail("tensor " + in_quotes(name) + " appears twice");
  header.tensors.emplace_back().name = std::move(name);
  has_dtype_ = has_shape_ = has_offsets_ = false;
  field_ = Field::none;
  offsets_.clear();
  return true;
}

bool HeaderReader::field_key(std::string_view name) {
  bool* seen = nullptr;
  if (name == "dtype") std::tie(field_, seen) = std::pair(Field::dtype, &has_dtype_);
  if (name == "shape") std::tie(field_, seen) = std::pair(Field::shape, &has_shape_);
  if (name == "data_offsets") std::tie(field_, seen) = std::pair(Field::offsets, &has_offsets_);
  if (!seen)
    return fail("tensor " + in_quotes(header.tensors.back().name) + " has an unknown key " + in_quotes(name));
  if (*seen)
    return fail("tensor " + in_quotes(header.tensors.back().name) + " has " + in_quotes(name) + " twice");
  return *seen = true;
}

bool HeaderReader::string(string_t& value) {
  if (place_ == Place::metadata) {
    if (header.metadata.size() >= kMaxSafetensorsMetadata) {
      return fail("more than " + std::to_string(kMaxSafetensorsMetadata) + " entries in __metadata__");
    }
    return header.metadata.emplace(std::move(metadata_key_), std::move(value)).second;
  }
  if (place_ != Place::tensor || field_ != Field::dtype) return refuse("a string");
  field_ = Field::none;
  const std::optional<SafetensorsType> type = parse_type(value);
  if (!type)
    return fail("tensor " + in_quotes(header.tensors.back().name) + " has the unsupported dtype " +
                in_quotes(value));
  header.tensors.back().type = *type;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if (place_ != Place::tensor || (field_ != Field::shape && field_ != Field::offsets))
    return refuse("a list");
  place_ = field_ == Field::shape ? Place::shape : Place::offsets;
  return true;
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::offsets) {
    offsets_.push_back(value);
    return offsets_.size() <= 2 || refuse("a third data offset");
  }
  if (place_ != Place::shape) return refuse("a number");
  std::vector<int64_t>& shape = header.tensors.back().shape;
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return refuse("an axis of 2^63 or more");
  if (shape.size() >= kMaxSafetensorsRank) return refuse("more than 64 axes");
  shape.push_back(static_cast<int64_t>(value));
  return true;
}

bool HeaderReader::end_array() {
  if (place_ == Place::offsets && offsets_.size() != 2) return refuse("fewer than two data offsets");
  place_ = Place::tensor;
  field_ = Field::none;
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::root) {
    place_ = Place::end;
    return true;
  }
  if (place_ == Place::tensor) {
    SafetensorsInfo& tensor = header.tensors.back();
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      return fail("tensor " + in_quotes(tensor.name) + " lacks dtype, shape or data_offsets");
    }
    tensor.begin = offsets_[0];
    tensor.end = offsets_[1];
  }
  place_ = Place::root;
  return true;
}

// The tensors must follow each other without gap or overlap and fill the data. Empty: they do.
std::string layout_error(const std::vector<SafetensorsInfo>& tensors, uint64_t data_bytes) {
  uint64_t expected = 0;
  for (const SafetensorsInfo& tensor : tensors) {
    const std::string name = "tensor " + in_quotes(tensor.name);
    if (tensor.begin > tensor.end || tensor.end > data_bytes) {
      return name + " has offsets [" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) +
             ") outside of the " + std::to_string(data_bytes) + " bytes of data";
    }
    if (tensor.begin != expected) {
      return name + (tensor.begin < expected ? " overlaps the one before" : " leaves a hole before it");
    }
    const std::optional<uint64_t> bytes = tensor_bytes(tensor.type, tensor.shape);
    if (!bytes) return name + " has a shape whose size overflows: " + describe(tensor.type, tensor.shape);
    if (*bytes != tensor.bytes()) {
      return name + " is " + describe(tensor.type, tensor.shape) + ", " + std::to_string(*bytes) +
             " bytes, but has " + std::to_string(tensor.bytes());
    }
    expected = tensor.end;
  }
  if (expected == data_bytes) return "";
  return std::to_string(data_bytes - expected) + " bytes at the end belong to no tensor";
}

std::string_view header_text(std::span<const std::byte> file, std::string_view file_name) {
  const std::string prefix = std::string(file_name) + ": no safetensors file: ";
  if (file.size() < kLengthBytes) throw UserError(prefix + "shorter than 8 bytes");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxSafetensorsHeader) {
    throw UserError(prefix + "a header of " + std::to_string(length) + " bytes; 100000000 are the most");
  }
  if (length > file.size() - kLengthBytes) throw UserError(prefix + "the header is longer than the file");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) throw UserError(prefix + "the header doesn't begin with '{'");
  // The JSON parser stops at a zero byte and would not check what follows it.
  if (text.find('\0') != std::string_view::npos) throw UserError(prefix + "a zero byte in the header");
  return text;
}

}  // namespace

std::string_view type_name(SafetensorsType type) { return row(type).name; }
size_t type_bytes(SafetensorsType type) { return row(type).bytes; }

std::optional<SafetensorsType> parse_type(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name) return static_cast<SafetensorsType>(i);
  }
  return std::nullopt;
}

std::string describe(SafetensorsType type, std::span<const int64_t> shape) {
  std::string text = std::string(type_name(type)) + " [";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string in_quotes(std::string_view name) {
  std::string text = "'";
  for (const char c : name.substr(0, 100)) text += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  return text + (name.size() > 100 ? "…'" : "'");
}

const SafetensorsInfo* SafetensorsHeader::find(const std::string& name) const {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &tensors[found->second];
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view file_name) {
  const std::string_view text = header_text(file, file_name);
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) {
    throw UserError(std::string(file_name) + ": " + reader.error);
  }
  SafetensorsHeader header = std::move(reader.header);
  header.data_offset = kLengthBytes + text.size();
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const std::string error = layout_error(header.tensors, file.size() - header.data_offset);
  if (!error.empty()) throw UserError(std::string(file_name) + ": " + error);
  for (size_t i = 0; i < header.tensors.size(); ++i) header.index[header.tensors[i].name] = i;
  return header;
}

namespace {

// Sorts the tensors and sets their offsets. Largest type first, so that each begins at a multiple of its
// type's size, which readers that map the file rely on.
void place_tensors(std::vector<SafetensorsInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::tuple(-static_cast<int>(type_bytes(a.type)), std::string_view(a.name)) <
           std::tuple(-static_cast<int>(type_bytes(b.type)), std::string_view(b.name));
  });
  uint64_t offset = 0;
  for (SafetensorsInfo& tensor : tensors) {
    const std::optional<uint64_t> bytes = tensor_bytes(tensor.type, tensor.shape);
    tensor.begin = offset;
    if (!bytes || __builtin_add_overflow(offset, *bytes, &offset) ||
        tensor.shape.size() > kMaxSafetensorsRank) {
      throw UserError("tensor " + in_quotes(tensor.name) +
                      " is too large for a file: " + describe(tensor.type, tensor.shape));
    }
    tensor.end = offset;
  }
}

std::string header_json(const std::vector<SafetensorsInfo>& tensors, const SafetensorsMetadata& metadata) {
  // Joined as text rather than built as one JSON object, which keeps the data's order cheaply.
  std::string text = "{";
  if (!metadata.empty())
    text += "\"" + std::string(kMetadataKey) + "\":" + nlohmann::json(metadata).dump() + ",";
  for (const SafetensorsInfo& tensor : tensors) {
    text += nlohmann::json(tensor.name).dump() + ":{\"dtype\":\"" + std::string(type_name(tensor.type)) +
            "\",\"shape\":" + nlohmann::json(tensor.shape).dump() + ",\"data_offsets\":[" +
            std::to_string(tensor.begin) + "," + std::to_string(tensor.end) + "]},";
  }
  if (text.back() == ',') text.pop_back();
  return text + "}";
}

}  // namespace

SafetensorsLayout layout_safetensors(std::vector<SafetensorsInfo> tensors,
                                     const SafetensorsMetadata& metadata) {
  place_tensors(tensors);
  std::unordered_map<std::string_view, int> seen;
  for (const SafetensorsInfo& tensor : tensors) {
    if (tensor.name == kMetadataKey) throw UserError("a tensor must not be named __metadata__");
    if (++seen[tensor.name] > 1) throw UserError("two tensors are named " + in_quotes(tensor.name));
  }
  std::string json;
  try {
    json = header_json(tensors, metadata);
  } catch (const nlohmann::json::type_error&) {
    throw UserError("a tensor's name or the metadata is no UTF-8");
  }
  json.append((kLengthBytes - json.size() % kLengthBytes) % kLengthBytes, ' ');
  if (json.size() > kMaxSafetensorsHeader || tensors.size() > kMaxSafetensors ||
      metadata.size() > kMaxSafetensorsMetadata) {
    throw UserError("too many tensors for one safetensors file: " + std::to_string(tensors.size()));
  }
  const uint64_t length = json.size();
  std::string head(kLengthBytes, '\0');
  std::memcpy(head.data(), &length, kLengthBytes);
  return {head + json, std::move(tensors)};
}

}  // namespace moelab
