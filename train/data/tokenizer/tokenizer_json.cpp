#include "train/data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "moe/settings/error.h"
#include "train/data/tokenizer/utf8.h"
#include "train/io/json_text.h"

namespace moelab {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr size_t kMaxShown = 60;  // bytes of a value in a message

// Messages inside describe only the content; parse_tokenizer prefixes the file's name.
[[noreturn]] void refuse(const std::string& what) { throw UserError(what); }

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text.replace(kMaxShown, std::string::npos, "…");
  return text;
}

// The member with that name, or null.
const json& member(const json& object, const char* name) {
  static const json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

bool flag(const json& object, const char* name, bool otherwise) {
  const json& value = member(object, name);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) refuse(std::string(name) + " is " + shown(value) + ", not true or false");
  return value.get<bool>();
}

const std::string& text_of(const json& value, const char* what) {
  if (!value.is_string()) refuse(std::string(what) + " is " + shown(value) + ", not a text");
  return value.get_ref<const std::string&>();
}

int32_t id_of(const json& value, const std::string& token) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxTokenizerIds) {
    refuse("the id of " + shown(token) + " is " + shown(value) + "; ids are 0 to " +
           std::to_string(kMaxTokenizerIds - 1));
  }
  return value.get<int32_t>();
}

// --- What is not implemented ---

// `part` of the file must have that type; files of early versions omit the model's type.
const json& typed(const json& root, const char* part, const std::string& type, bool may_lack_type = false) {
  const json& value = member(root, part);
  if (value.is_object()) {
    const json& have = member(value, "type");
    if (have == type || (may_lack_type && have.is_null())) return value;
    if (have.is_string())
      refuse("the " + std::string(part) + " " + shown(have) + " is not supported; only \"" + type + "\" is");
  }
  refuse("the " + std::string(part) + " is " + shown(value) + "; only a \"" + type + "\" is supported");
}

void require_no_normalizer(const json& root) {
  const json& value = member(root, "normalizer");
  if (value.is_null()) return;
  const json& type = value.is_object() ? member(value, "type") : value;
  refuse("the normalizer " + shown(type) + " is not supported; only tokenizers without one are");
}

void require_plain_merging(const json& model) {
  for (const char* name : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                           "byte_fallback", "ignore_merges"}) {
    static const std::array<json, 4> off = {nullptr, false, 0, ""};
    const json& value = member(model, name);
    if (std::find(off.begin(), off.end(), value) != off.end()) continue;
    refuse("the model's " + std::string(name) + " " + shown(value) +
           " is not supported; only tokenizers without it are");
  }
}

// --- The vocabulary ---

// The byte that one of GPT-2's printable characters stands for: the byte itself if it prints ('!' to U+00FF);
// the other bytes, in ascending order, are the characters from U+0100 on.
std::optional<uint8_t> byte_of(char32_t point) {
  static const std::vector<uint8_t> others = [] {
    std::vector<uint8_t> bytes;
    for (int byte = 0; byte < 256; ++byte) {
      if (byte < '!' || (byte > '~' && byte < 0xA1) || byte == 0xAD)
        bytes.push_back(static_cast<uint8_t>(byte));
    }
    return bytes;
  }();
  if (point >= 256) return point - 256 < others.size() ? std::optional(others[point - 256]) : std::nullopt;
  const auto byte = static_cast<uint8_t>(point);
  return std::binary_search(others.begin(), others.end(), byte) ? std::nullopt : std::optional(byte);
}

// The token's bytes; a token with a character outside that alphabet is literal text.
std::string bytes_of(const std::string& token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = next_utf8(std::string_view(token).substr(at));
    const std::optional<uint8_t> byte = byte_of(step.point);
    if (!byte) return token;
    bytes += static_cast<char>(*byte);
    at += step.length;
  }
  return bytes;
}

// Fills a BpeModel from the parts of a file; call the functions in this order.
class Builder {
 public:
  BpeModel model;

  void add_vocabulary(const json& vocabulary);
  void add_merges(const json& merges);
  void add_added_tokens(const json& tokens);
  void finish();

 private:
  void take_id(const std::string& token, int32_t id);
  int32_t known(const json& token) const;
  int32_t expected_id(const std::string& token) const;
  void add_added_token(const json& token);

  std::unordered_map<std::string, int32_t> ids_;  // the model's vocabulary
  std::unordered_set<std::string> added_;
  int32_t after_added_ = 0;  // the largest id of added tokens plus one
  std::vector<bool> taken_;  // by id
};

void Builder::take_id(const std::string& token, int32_t id) {
  const size_t at = static_cast<size_t>(id);
  if (at >= taken_.size()) {
    taken_.resize(at + 1);
    model.texts.resize(at + 1);
  }
  if (taken_[at]) refuse("two tokens have the id " + std::to_string(id) + "; one is " + shown(token));
  taken_[at] = true;
  model.texts[at] = bytes_of(token);
}

void Builder::add_vocabulary(const json& vocabulary) {
  if (!vocabulary.is_object() || vocabulary.empty()) refuse("the model has no vocab");
  model.byte_ids.fill(-1);
  for (const auto& [token, value] : vocabulary.items()) {
    const int32_t id = id_of(value, token);
    take_id(token, id);
    ids_.emplace(token, id);
    if (token.empty()) continue;
    const Utf8Step first = next_utf8(token);
    if (first.length < token.size()) continue;
    if (const auto byte = byte_of(first.point)) model.byte_ids[*byte] = id;
  }
}

int32_t Builder::known(const json& token) const {
  const auto found = ids_.find(text_of(token, "half of a merge"));
  if (found == ids_.end()) refuse("the merges use " + shown(token) + ", which the vocab lacks");
  return found->second;
}

// A merge is ["a", "b"]; in files of early versions, "a b".
std::pair<json, json> halves(const json& merge) {
  if (merge.is_array() && merge.size() == 2) return {merge[0], merge[1]};
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const size_t space = text.find(' ');
  if (space == std::string::npos || space != text.rfind(' ')) {
    refuse("the merge " + shown(merge) + " is not two tokens");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void Builder::add_merges(const json& merges) {
  if (!merges.is_array()) refuse("the model has no merges");
  uint32_t rank = 0;
  for (const json& merge : merges) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = halves(merge);
    const uint64_t pair = BpeModel::pair(known(left), known(right));
    const int32_t both = known(left.get<std::string>() + right.get<std::string>());
    model.merges.insert_or_assign(pair, BpeModel::Merge{rank++, both});
  }
}

// The package assigns the ids of added tokens itself, whatever the file says: the vocabulary's id, or the
// next free one.
int32_t Builder::expected_id(const std::string& token) const {
  if (const auto found = ids_.find(token); found != ids_.end()) return found->second;
  return std::max(static_cast<int32_t>(ids_.size()), after_added_);
}

void Builder::add_added_tokens(const json& tokens) {
  if (tokens.is_null()) return;
  if (!tokens.is_array()) refuse("added_tokens is " + shown(tokens) + ", not a list");
  for (const json& token : tokens) add_added_token(token);
  for (AddedTokens* added : {&model.added_first, &model.added_then}) {
    std::stable_sort(added->longest_first.begin(), added->longest_first.end(),
                     [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
  }
}

void Builder::add_added_token(const json& token) {
  const std::string& text = text_of(token.is_object() ? member(token, "content") : token, "an added token");
  if (text.empty()) refuse("an added token is empty");
  for (const char* name : {"single_word", "lstrip", "rstrip"}) {
    if (flag(token, name, false))
      refuse(std::string(name) + " of the added token " + shown(text) + " is not supported");
  }
  const int32_t id = id_of(member(token, "id"), text), expected = expected_id(text);
  if (id != expected) {
    refuse("the added token " + shown(text) + " has the id " + std::to_string(id) + ", where " +
           std::to_string(expected) + " is next");
  }
  if (!added_.insert(text).second) refuse("the token " + shown(text) + " is added twice");
  after_added_ = std::max(after_added_, id + 1);
  if (!ids_.contains(text)) take_id(text, id);
  const bool special = flag(token, "special", false);
  if (special) model.texts[static_cast<size_t>(id)].clear();
  AddedTokens& added = flag(token, "normalized", !special) ? model.added_then : model.added_first;
  added.longest_first.push_back({text, id});
  added.first_bytes.set(static_cast<uint8_t>(text[0]));
}

void Builder::finish() {
  bool alone = model.texts.size() == 256 && model.merges.empty() && added_.empty() && !model.leading_space;
  for (int32_t byte = 0; byte < 256; ++byte) alone &= model.byte_ids[static_cast<size_t>(byte)] == byte;
  model.bytes_alone = alone;
}

BpeModel build(const json& root) {
  if (!root.is_object()) refuse("not a tokenizer: no JSON object");
  const json& model = typed(root, "model", "BPE", true);
  require_no_normalizer(root);
  require_plain_merging(model);
  const json& level = typed(root, "pre_tokenizer", "ByteLevel");
  typed(root, "decoder", "ByteLevel");

  Builder builder;
  builder.model.split_words = flag(level, "use_regex", true);
  builder.model.leading_space = flag(level, "add_prefix_space", true);
  builder.add_vocabulary(member(model, "vocab"));
  builder.add_merges(member(model, "merges"));
  builder.add_added_tokens(member(root, "added_tokens"));
  builder.finish();
  return std::move(builder.model);
}

}  // namespace

BpeModel parse_tokenizer(std::string_view text, std::string_view file_name) {
  const std::string name(file_name);
  if (text.size() > kMaxTokenizerBytes) {
    throw UserError(name + ": more than " + std::to_string(kMaxTokenizerBytes >> 20) +
                    " MiB; no tokenizer.json is that large");
  }
  const json file = parse_json(text, name, kMaxDepth);
  try {
    return build(file);
  } catch (const UserError& error) {
    throw UserError(name + ": " + error.what());
  }
}

}  // namespace moelab
