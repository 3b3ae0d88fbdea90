#include "train/settings/presets/parameter_count.h"

namespace moelab {
namespace {

template <class Number>
Number count(const ModelSettings& model, Number experts) {
  const Number d = Number(model.d_model), q = Number(model.heads) * Number(model.head()),
               kv = Number(model.kv()) * Number(model.head());
  const Number embedding = Number(model.vocab) * d;
  const Number attention = d * q + 2 * d * kv + q * d;
  const Number qk_norm = model.qk_norm == QkNorm::full   ? q + kv
                         : model.qk_norm == QkNorm::head ? 2 * Number(model.head())
                                                         : Number(0);
  const Number expert = 3 * d * Number(model.d_expert);
  const Number feed_forward =
      model.dense() ? expert : Number(model.experts) * d + (experts + Number(model.shared_experts)) * expert;
  const Number block = 2 * d + attention + qk_norm + feed_forward;
  return embedding + Number(model.layers) * block + d + (model.tie_embeddings ? Number(0) : embedding);
}

}  // namespace

int64_t parameter_count(const ModelSettings& model) { return count<int64_t>(model, model.experts); }

int64_t active_parameter_count(const ModelSettings& model) {
  return count<int64_t>(model, model.experts_per_token);
}

double approximate_parameter_count(const ModelSettings& model) {
  return count<double>(model, double(model.experts));
}

}  // namespace moelab
