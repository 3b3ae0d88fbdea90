#include "train/data/tokenizer/tokenizer.h"

#include <optional>

#include "train/data/tokenizer/bpe_model.h"
#include "train/data/tokenizer/tokenizer_json.h"
#include "train/data/tokenizer/utf8.h"
#include "train/data/tokenizer/words.h"
#include "train/io/mapped_file.h"

namespace moelab {
namespace fs = std::filesystem;
namespace {

// A part of a text: an added token, or plain text still to be encoded (no id).
struct TextPart {
  std::string_view text;
  std::optional<int32_t> id;
};

// The longest added token at the start of the text, or null.
const AddedTokens::Token* added_at(const AddedTokens& added, std::string_view text) {
  if (!added.first_bytes[static_cast<uint8_t>(text[0])]) return nullptr;
  for (const AddedTokens::Token& token : added.longest_first) {
    if (text.starts_with(token.text)) return &token;
  }
  return nullptr;
}

// Appends the text's parts; none is empty.
void cut_out(const AddedTokens& added, std::string_view text, std::vector<TextPart>& parts) {
  size_t begin = 0;
  const auto text_until = [&](size_t end) {
    if (begin < end) parts.push_back({text.substr(begin, end - begin), std::nullopt});
  };
  for (size_t at = 0; at < text.size();) {
    const AddedTokens::Token* token = added_at(added, text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    text_until(at);
    parts.push_back({token->text, token->id});
    begin = at += token->text.size();
  }
  text_until(text.size());
}

std::vector<TextPart> cut_out_added(const BpeModel& model, std::string_view text) {
  std::vector<TextPart> first, all;
  cut_out(model.added_first, text, first);
  for (const TextPart& part : first) {
    if (part.id) {
      all.push_back(part);
    } else {
      cut_out(model.added_then, part.text, all);
    }
  }
  return all;
}

void encode_text(const BpeModel& model, std::string_view text, std::vector<int64_t>& ids) {
  std::string with_space;
  if (model.leading_space && text[0] != ' ') {
    with_space = " " + std::string(text);
    text = with_space;
  }
  if (!model.split_words) return append_word(model, text, ids);
  for (const std::string_view word : split_words(text)) append_word(model, word, ids);
}

// The token's bytes; empty for unused ids.
std::string_view text_of(const BpeModel& model, int64_t id) {
  if (id < 0 || static_cast<uint64_t>(id) >= model.texts.size()) return {};
  return model.texts[static_cast<size_t>(id)];
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const BpeModel> model) : model_(std::move(model)) {}

Tokenizer Tokenizer::load(const fs::path& file_or_folder) {
  std::error_code error;
  const fs::path path =
      fs::is_directory(file_or_folder, error) ? file_or_folder / "tokenizer.json" : file_or_folder;
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return Tokenizer(std::make_shared<BpeModel>(parse_tokenizer(text, path.string())));
}

std::vector<int64_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  if (model_->bytes_alone) {
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  const std::string valid = replace_broken_utf8(text);
  for (const TextPart& part : cut_out_added(*model_, valid)) {
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      encode_text(*model_, part.text, ids);
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids) const {
  std::string bytes;
  for (const int64_t id : ids) bytes += text_of(*model_, id);
  return replace_broken_utf8(bytes);
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(model_->texts.size()); }

bool Tokenizer::bytes_alone() const { return model_->bytes_alone; }

std::optional<int64_t> end_of_text(const Tokenizer& tokenizer) {
  for (const char* name :
       {"<|endoftext|>", "<|end_of_text|>", "<|eot|>", "</s>", "<eos>", "<|im_end|>", "[EOS]"}) {
    const std::vector<int64_t> ids = tokenizer.encode(name);
    if (ids.size() == 1) return ids[0];
  }
  return tokenizer.vocab_size() == 256 ? std::optional<int64_t>(0) : std::nullopt;
}

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer) : model_(tokenizer.model_) {}

std::string StreamingDecoder::push(int64_t id) {
  pending_ += text_of(*model_, id);
  return take_characters(pending_);
}

std::string StreamingDecoder::finish() {
  const std::string rest = replace_broken_utf8(pending_);
  pending_.clear();
  return rest;
}

}  // namespace moelab
