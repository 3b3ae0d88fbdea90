#include "train/data/dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "moe/settings/error.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;
using Shards = std::vector<std::shared_ptr<const Shard>>;

constexpr int64_t kHeldOutShare = 20;  // one token in twenty, 5 %

struct Part {
  fs::path path;
  double weight = 1;
};

double parse_weight(std::string_view text, std::string_view part, const std::string& key) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(weight) && weight > 0)
    return weight;
  throw UserError(key + ": '" + std::string(part) + "': the weight must be a number above 0, as in 0.7*DIR");
}

Part parse_part(std::string_view text, bool alone, const std::string& key) {
  const size_t star = text.find('*');
  if (star == std::string_view::npos) {
    if (alone) return {text, 1};
    throw UserError(key + ": '" + std::string(text) + "' has no weight; write a mix as 0.7*DIR1,0.3*DIR2");
  }
  Part part{text.substr(star + 1), parse_weight(text.substr(0, star), text, key)};
  if (part.path.empty()) throw UserError(key + ": no path after '" + std::string(text) + "'");
  return part;
}

// If the whole text is an existing path, it is that path, whatever commas and stars it has.
std::vector<Part> parse_mix(const std::string& text, const std::string& key) {
  if (text.empty())
    throw UserError(key + " is empty: name a folder of token shards (scripts/prepare_data.py makes one)");
  std::error_code ignored;
  if (fs::exists(text, ignored)) return {{text, 1}};
  const bool alone = text.find(',') == std::string::npos;
  std::vector<Part> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(parse_part(std::string_view(text).substr(begin, end - begin), alone, key));
    begin = end + 1;
  }
  return parts;
}

struct Files {
  std::vector<fs::path> train, validation, all;
};

Files list_folder(const fs::path& folder) {
  Files files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (it->path().extension() != ".bin" || name.starts_with('.')) continue;
    files.all.push_back(it->path());
    if (name.starts_with("train")) files.train.push_back(it->path());
    if (name.starts_with("val")) files.validation.push_back(it->path());
  }
  if (error) throw UserError("cannot list " + folder.string() + ": " + error.message());
  for (auto* list : {&files.train, &files.validation, &files.all}) std::ranges::sort(*list);
  return files;
}

Files find_files(const fs::path& path, const std::string& key) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    throw UserError(key + ": no such file or folder: " + path.string() +
                    "; name a folder of token shards (scripts/prepare_data.py makes one)");
  if (!fs::is_directory(status)) return {{}, {}, {path}};
  Files files = list_folder(path);
  if (files.all.empty())
    throw UserError(key + ": no *.bin in " + path.string() +
                    "; scripts/prepare_data.py --out makes token shards");
  return files;
}

TokenRange open_shards(const std::vector<fs::path>& files, int64_t vocab) {
  Shards shards;
  shards.reserve(files.size());
  for (const fs::path& file : files) shards.push_back(std::make_shared<const Shard>(file, vocab));
  return TokenRange(std::move(shards));
}

[[noreturn]] void refuse_short(const std::string& what, int64_t tokens, int64_t needed, int64_t sequence,
                               int64_t possible, const std::string& remedy) {
  std::string message = what + " has " + std::to_string(tokens) +
                        " tokens, but train.sequence=" + std::to_string(sequence) + " needs at least " +
                        std::to_string(needed) + ": add data";
  if (possible >= 1) message += ", or set train.sequence=" + std::to_string(possible) + " or less";
  throw UserError(message + remedy);
}

void require_window(const std::string& what, const TokenRange& tokens, int64_t sequence) {
  if (tokens.windows(sequence) == 0)
    refuse_short(what, tokens.size(), sequence + 1, sequence, tokens.size() - 1, "");
}

// Splits the end of the training tokens off as validation data.
TokenRange hold_out(Source& source, int64_t sequence) {
  const int64_t tokens = source.tokens.size();
  const int64_t held = std::max(sequence + 1, tokens / kHeldOutShare);
  if (tokens - held < sequence + 1)
    refuse_short(source.name, tokens, 2 * (sequence + 1), sequence, tokens / 2 - 1,
                 ", or name held-out shards with data.validation (without them a part is held out)");
  const TokenRange validation = source.tokens.part(tokens - held, held);
  source.tokens = source.tokens.part(0, tokens - held);
  return validation;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Remembers the source's tokenizer. Throws UserError if it differs from an earlier source's: the ids of two
// tokenizers must not be mixed.
void note_tokenizer(const fs::path& source, std::optional<fs::path>& known) {
  const fs::path file = (fs::is_directory(source) ? source : source.parent_path()) / "tokenizer.json";
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return;
  if (!known) known = file;
  if (*known != file && contents(*known) != contents(file))
    throw UserError("data.path: " + known->string() + " and " + file.string() +
                    " differ; prepare all parts of a mix with one tokenizer (prepare_data.py --tokenizer)");
}

void open_validation(const std::string& text, int64_t vocab, int64_t sequence, Dataset& data) {
  for (const Part& part : parse_mix(text, "data.validation")) {
    const Files files = find_files(part.path, "data.validation");
    const TokenRange tokens = open_shards(files.validation.empty() ? files.all : files.validation, vocab);
    require_window("data.validation: " + part.path.string(), tokens, sequence);
    data.validation.push_back({part.path.string(), part.weight, tokens});
    note_tokenizer(part.path, data.tokenizer);
  }
}

void open_source(const Part& part, bool with_validation, int64_t vocab, int64_t sequence, Dataset& data) {
  const Files files = find_files(part.path, "data.path");
  if (files.train.empty() && !files.validation.empty())
    throw UserError("data.path: " + part.path.string() + " has val*.bin but no train*.bin");
  const std::string name = "data.path: " + part.path.string();
  Source source{name, part.weight, open_shards(files.train.empty() ? files.all : files.train, vocab)};
  if (with_validation && files.validation.empty()) {
    data.validation.push_back({name, part.weight, hold_out(source, sequence)});
  } else if (with_validation) {
    const TokenRange held = open_shards(files.validation, vocab);
    require_window(name + "/val*.bin", held, sequence);
    data.validation.push_back({name, part.weight, held});
  }
  require_window(name, source.tokens, sequence);
  data.train.push_back(std::move(source));
  note_tokenizer(part.path, data.tokenizer);
}

}  // namespace

TokenRange::TokenRange(Shards shards) : shards_(std::move(shards)) {
  starts_.reserve(shards_.size());
  for (const auto& shard : shards_) {
    starts_.push_back(end_);
    end_ += shard->size();
  }
}

std::optional<int64_t> TokenRange::largest_id() const {
  std::optional<int64_t> largest;
  for (const auto& shard : shards_) {
    if (!shard->largest_id()) return std::nullopt;
    largest = std::max(largest.value_or(0), *shard->largest_id());
  }
  return largest;
}

TokenRange TokenRange::part(int64_t first, int64_t count) const {
  if (first < 0 || count < 0 || count > size() || first > size() - count)
    throw std::out_of_range("TokenRange::part past the end");
  TokenRange range = *this;
  range.begin_ = begin_ + first;
  range.end_ = range.begin_ + count;
  return range;
}

void TokenRange::copy(int64_t first, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || count > size() || first > size() - count)
    throw std::out_of_range("TokenRange::copy past the end");
  int64_t at = begin_ + first;
  auto shard = static_cast<size_t>(std::ranges::upper_bound(starts_, at) - starts_.begin()) - 1;
  for (; !out.empty(); ++shard) {
    const int64_t offset = at - starts_[shard];
    const auto here = std::min(static_cast<size_t>(shards_[shard]->size() - offset), out.size());
    shards_[shard]->copy(offset, out.first(here));
    out = out.subspan(here);
    at += static_cast<int64_t>(here);
  }
}

Dataset open_dataset(const std::string& path, const std::string& validation, int64_t vocab,
                     int64_t sequence) {
  Dataset data;
  for (const Part& part : parse_mix(path, "data.path"))
    open_source(part, validation.empty(), vocab, sequence, data);
  if (!validation.empty()) open_validation(validation, vocab, sequence, data);
  return data;
}

}  // namespace moelab
