#include <algorithm>

#include "train/settings/facts/require.h"
#include "train/settings/facts/update_rule.h"
#include "train/settings/presets/parameter_count.h"

// Muon (kernels/update/muon.h) for the blocks' matrices, AdamW for embedding, head, norms and routers.
namespace moelab {
namespace {

// FLOPs of five rounds for an R x C matrix. A round computes A = X X^T, A A, and (A and A A combined) X; M is
// the smaller side.
double orthogonalisation_flops(double R, double C) {
  const double M = std::min(R, C), N = std::max(R, C);
  return 5 * (2 * M * M * N + 2 * M * M * M + 2 * M * M * N);
}

double block_flops(const ModelSettings& model) {
  double flops = 0;
  for (const BlockMatrix& matrix : block_matrices(model))
    if (matrix.part != MatrixPart::router)
      flops += static_cast<double>(matrix.count) *
               orthogonalisation_flops(static_cast<double>(matrix.rows), static_cast<double>(matrix.columns));
  return flops;
}

class MuonFacts : public UpdateRuleFacts {
 public:
  std::vector<StateSlot> layout(const WeightShape& weight) const override {
    if (weight.hidden) return {{"m", weight.shape}};
    return {{"m", weight.shape}, {"v", weight.shape}};
  }
  Cut cut(const WeightShape& weight) const override {
    return weight.hidden ? cut_by_matrix(weight) : UpdateRuleFacts::cut(weight);
  }
  std::string formula() const override {
    return bytes_text(true) + "; of embedding, head, norms and routers " + bytes_text(false);
  }
  // Costs: products in bf16, plus SGD's step inside the blocks and AdamW's outside.
  std::string_view cost_term() const override { return ""; }
  std::vector<Cost> costs(const ModelSettings& model, const WeightCounts& weights) const override {
    return {{"products_bf16", static_cast<double>(model.layers) * block_flops(model)},
            {"update_sgd", weights.in_blocks},
            {"update_adamw", weights.outside}};
  }
  void check(const Settings& s) const override {
    require(!captures_step(s.memory.cuda_graphs), named("memory.cuda_graphs", s.memory.cuda_graphs) +
                                                      " with optim.name=muon: a CUDA graph cannot skip "
                                                      "Muon's step; set memory.cuda_graphs=none or decode, "
                                                      "or another optim.name");
  }
  std::optional<Technique> row() const override {
    return Technique{
        "muon",
        "Muon: orthogonalised momentum for the blocks' matrices, AdamW for the rest",
        {{"optim.name", "muon"}},
        "Five rounds of products for each matrix and step; a matrix learns at 67 times optim.lr.",
        instead_of_moments("momentum") + ", but for embedding and head",
        {"ava.optimizer_states"}};
  }
};

}  // namespace

const UpdateRuleFacts& muon_facts() {
  static const MuonFacts facts;
  return facts;
}

}  // namespace moelab
