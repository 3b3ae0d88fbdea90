// Whatever the text, a tokenizer.json is refused with a UserError or its merges give ids of its own
// vocabulary.
#include <cstdlib>
#include <string>
#include <vector>

#include "moe/settings/error.h"
#include "train/data/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const moelab::BpeModel model = moelab::parse_tokenizer(text, "file");
    if (model.texts.size() > moelab::kMaxTokenizerIds) std::abort();
    std::vector<int64_t> ids;
    moelab::append_word(model, text, ids);
    if (ids.size() > text.size()) std::abort();
    for (const int64_t id : ids) {
      if (id < 0 || id >= static_cast<int64_t>(model.texts.size())) std::abort();
    }
  } catch (const moelab::UserError&) {
  }
  return 0;
}
