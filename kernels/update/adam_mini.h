#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/update/optimizer_step.h"

namespace moelab {

// Adam-mini's blocks: the rows of a weight that share one learning rate. First come `heads` blocks of
// `head_rows` rows each (the query and key heads), then one block per row (an output neuron). A vector is one
// row.
struct MiniBlocks {
  int64_t rows = 1;
  int64_t heads = 0;
  int64_t head_rows = 0;
  int64_t count() const { return heads + rows - heads * head_rows; }
};

// Adam-mini (Zhang et al., arXiv 2406.16793): AdamW with one second moment per block, the running mean of the
// block's mean g^2:
//   m = beta1 m + (1 - beta1) g;  v_b = beta2 v_b + (1 - beta2) mean(g^2 over block b)
//   master -= lr * weight_decay * master + lr * (m / (1 - beta1^step)) / (sqrt(v_b / (1 - beta2^step)) + eps)
// master and m (fp32): blocks.rows rows of any width; v fp32, one a block; master, gradient and compute_copy
// as for adamw_. Nothing is allocated; results do not depend on the number of threads. Throws c10::Error on
// other tensors.
void adam_mini_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& m,
                const at::Tensor& v, const MiniBlocks& blocks, const std::optional<at::Tensor>& compute_copy,
                const OptimizerStep& step);

}  // namespace moelab
