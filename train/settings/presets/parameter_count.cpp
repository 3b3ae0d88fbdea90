#include "train/settings/presets/parameter_count.h"

namespace moelab {
namespace {

template <class Number>
Number count(const ModelSettings& model, int64_t experts) {
  const Number d = Number(model.d_model), head = Number(model.head());
  Number block = 2 * d;  // the norms
  if (model.qk_norm == QkNorm::full) block += Number(model.heads + model.kv()) * head;
  if (model.qk_norm == QkNorm::head) block += 2 * head;
  for (const BlockMatrix& matrix : block_matrices(model)) {
    const int64_t times = matrix.part == MatrixPart::experts ? experts : matrix.count;
    block += Number(matrix.rows) * Number(matrix.columns) * Number(times);
  }
  const Number embedding = Number(model.vocab) * d;
  return embedding + Number(model.layers) * block + d + (model.tie_embeddings ? Number(0) : embedding);
}

}  // namespace

std::vector<BlockMatrix> block_matrices(const ModelSettings& m) {
  const int64_t D = m.d_model, F = m.d_expert, queries = m.heads * m.head(), keys = m.kv() * m.head(),
                shared = F * m.shared_experts;
  std::vector<BlockMatrix> matrices = {{MatrixPart::attention, queries + 2 * keys, D},
                                       {MatrixPart::attention, D, queries}};
  const auto add = [&](MatrixPart part, int64_t width, int64_t count) {
    matrices.push_back({part, 2 * width, D, count});
    matrices.push_back({part, D, width, count});
  };
  if (m.dense()) {
    add(MatrixPart::feed_forward, F, 1);
    return matrices;
  }
  matrices.push_back({MatrixPart::router, m.experts, D});
  add(MatrixPart::experts, F, m.experts);
  if (shared > 0) add(MatrixPart::feed_forward, shared, 1);
  return matrices;
}

int64_t parameter_count(const ModelSettings& model) { return count<int64_t>(model, model.experts); }

int64_t active_parameter_count(const ModelSettings& model) {
  return count<int64_t>(model, model.experts_per_token);
}

double approximate_parameter_count(const ModelSettings& model) { return count<double>(model, model.experts); }

}  // namespace moelab
