#pragma once
#include <string>
#include <string_view>

#include "train/tokenizer/bpe_model.h"

namespace moelab {

inline constexpr size_t kMaxTokenizerBytes = 64 << 20;  // of the file; the largest known have 35 MB
inline constexpr size_t kMaxTokenizerIds = 1 << 20;     // the largest known have 262,144

// Reads and checks the text of a tokenizer.json. Input is not trusted. Throws UserError, beginning with
// `file_name`, for what is no such file, for ids that are shared, beyond kMaxTokenizerIds or not those that
// the `tokenizers` package would give, and for parts that are not implemented, by name.
BpeModel parse_tokenizer(std::string_view text, std::string_view file_name);

}  // namespace moelab
