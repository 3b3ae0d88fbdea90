#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "moe/settings/error.h"
#include "moe/settings/model_settings.h"

namespace moelab {

namespace detail {

inline void check_divides_over(std::string_view key, int64_t value, int64_t ranks) {
  if (value % ranks == 0) return;
  const auto text = [](int64_t number) { return std::to_string(number); };
  throw UserError(std::string(key) + "=" + text(value) + " does not divide over " + text(ranks) +
                  " tensor-parallel ranks; try " + text(std::max(ranks, value / ranks * ranks)) + " or " +
                  text((value / ranks + 1) * ranks));
}

}  // namespace detail

// The settings of what each of `ranks` tensor-parallel ranks has: 1/ranks of the heads, of d_expert and of
// the vocabulary, heads as wide as before. Throws UserError if key/value heads, query heads, d_expert or the
// vocabulary do not divide, or with qk_norm=full, which would need sums over all heads.
inline ModelSettings rank_model(const ModelSettings& model, int64_t ranks) {
  detail::check_divides_over("model.heads", model.heads, ranks);
  detail::check_divides_over("model.kv_heads", model.kv(), ranks);
  detail::check_divides_over("model.d_expert", model.d_expert, ranks);
  detail::check_divides_over("model.vocab", model.vocab, ranks);
  if (ranks > 1 && model.qk_norm == QkNorm::full) {
    throw UserError("model.qk_norm=full cannot be tensor-parallel: it is one norm over all heads; try head");
  }
  ModelSettings slice = model;
  slice.head_dim = model.head();
  slice.heads = model.heads / ranks;
  slice.kv_heads = model.kv() / ranks;
  slice.d_expert = model.d_expert / ranks;
  slice.vocab = model.vocab / ranks;
  return slice;
}

}  // namespace moelab
