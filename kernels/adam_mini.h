#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/optimizer_step.h"

namespace moelab {

// How Adam-mini cuts a weight into blocks of one learning rate each: first `heads` blocks of `head_rows` rows
// (the query and key heads), then every row, an output neuron's, is a block. A vector is one row.
struct MiniBlocks {
  int64_t rows = 1;
  int64_t heads = 0;
  int64_t head_rows = 0;
  int64_t count() const { return heads + rows - heads * head_rows; }
};

// Adam-mini (Zhang et al., arXiv 2406.16793): AdamW whose second moment is one number a block, the running
// mean of the block's mean g^2:
//   m = beta1 m + (1 - beta1) g;  v_b = beta2 v_b + (1 - beta2) mean(g^2 over block b)
//   master -= lr * weight_decay * master + lr * (m / (1 - beta1^step)) / (sqrt(v_b / (1 - beta2^step)) + eps)
// master and m (fp32) of rows x anything; v fp32, one a block; master, gradient and copy as adamw_. Nothing
// is allocated; results do not depend on the number of threads. Throws c10::Error on other tensors.
void adam_mini_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& m,
                const at::Tensor& v, const MiniBlocks& blocks, const std::optional<at::Tensor>& compute_copy,
                const OptimizerStep& step);

}  // namespace moelab
