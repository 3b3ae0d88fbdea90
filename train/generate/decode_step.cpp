#include "train/generate/decode_step.h"

#include <ATen/ATen.h>

#include "kernels/attention/rope.h"
#include "kernels/moe/grouped_products.h"
#include "kernels/operator/gpu.h"

// Axes: B texts, P positions of the cache, V vocabulary.
namespace moelab {

bool DecodeStep::fits(const Transformer& model) {
  const ModelSettings& m = model.settings();
  if (!model.device().is_cuda() || m.dense()) return true;
  return !model.fp8() && expert_products(compute_capability(model.device()), model.compute(), m.experts,
                                         m.d_model, m.d_expert) != ExpertProducts::each;
}

DecodeStep::DecodeStep(Transformer& model, BlockRunner& runner, KvCache& cache)
    : model_(model), runner_(runner), cache_(cache), graph_(model.device()) {
  const ModelSettings& m = model.settings();
  rope_P_ = rope_table(cache.positions(), m.head(), m.rope_theta, model.device());
  next_2B_ = at::zeros({2, cache.batch()}, at::TensorOptions().device(model.device()).dtype(at::kLong));
}

at::Tensor DecodeStep::read(const std::vector<Next>& texts) {
  const auto B = static_cast<int64_t>(texts.size());
  TORCH_CHECK(B == cache_.batch(), "decode: ", B, " texts for a cache of ", cache_.batch());
  const at::Tensor next_2B = at::empty({2, B}, at::kLong);
  auto into = next_2B.accessor<int64_t, 2>();
  for (int64_t i = 0; i < B; ++i) {
    const Next& next = texts[static_cast<size_t>(i)];
    TORCH_CHECK(next.position >= 0 && next.position < cache_.positions(), "decode: position ", next.position,
                " of ", cache_.positions());
    into[0][i] = next.token;
    into[1][i] = next.position;
  }
  next_2B_.copy_(next_2B);
  graph_.run([this] {
    const at::Tensor position_B = next_2B_[1];
    const TokenPositions places{rope_P_.index_select(0, position_B), position_B};
    logits_BV_ = model_.next_logits(next_2B_[0], places, cache_, runner_).to(at::kFloat);
  });
  return logits_BV_.cpu();
}

}  // namespace moelab
