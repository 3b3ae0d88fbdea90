#pragma once
#include <string>
#include <string_view>

#include "train/data/tokenizer/bpe_model.h"

namespace moelab {

inline constexpr size_t kMaxTokenizerBytes = 64 << 20;  // limit for the file; the largest known has 35 MB
inline constexpr size_t kMaxTokenizerIds = 1 << 20;     // the largest known has 262,144

// Reads and checks the text of a tokenizer.json. Input is not trusted. Throws UserError, beginning with
// `file_name`, for text of another format, for ids that are shared, beyond kMaxTokenizerIds or different from
// those of the `tokenizers` package, and for parts that are not supported, by name.
BpeModel parse_tokenizer(std::string_view text, std::string_view file_name);

}  // namespace moelab
