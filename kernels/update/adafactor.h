#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/update/optimizer_step.h"

namespace moelab {

// Adafactor without a first moment (Shazeer & Stern, arXiv 1804.04235, algorithm 4, with lr given). The last
// two dimensions (rows, columns) are a matrix; its second moment is stored as an outer product. Leading
// dimensions (experts) count separate matrices. A vector is a matrix of one row. With beta = 1 - step^-0.8:
//   r = beta r + (1 - beta) mean over columns of (g^2 + 1e-30), c likewise over rows
//   u = g / sqrt(r c / mean(r));  u /= max(1, rms(u));  master -= lr * (u + weight_decay * master)
// master (experts * rows * columns elements); row fp32 (experts * rows) and column fp32 (experts * columns)
// hold r and c; master, gradient and compute_copy as for adamw_. The gradient is read three times before the
// update; scratch is one double a row. Results do not depend on the number of threads. betas and eps are not
// read. Throws c10::Error on other tensors.
void adafactor_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& row,
                const at::Tensor& column, const std::optional<at::Tensor>& compute_copy,
                const OptimizerStep& step);

}  // namespace moelab
