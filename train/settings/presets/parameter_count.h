#pragma once
#include <cstdint>
#include <vector>

#include "moe/settings/model_settings.h"

namespace moelab {

enum class MatrixPart { attention, router, feed_forward, experts };

// A weight matrix of a block, (rows, columns); the block has `count` of this shape.
struct BlockMatrix {
  MatrixPart part;  // feed_forward: of a dense block, or of shared experts as one
  int64_t rows = 0, columns = 0, count = 1;

  double elements() const {
    return static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(count);
  }
};
std::vector<BlockMatrix> block_matrices(const ModelSettings& model);

// Number of trainable parameters, in closed form: embedding, blocks (two norms, attention, router, experts),
// final norm, and the head unless it is tied. A sigmoid router's bias is state, not a parameter. Exact below
// 2^63, which validate() ensures.
int64_t parameter_count(const ModelSettings& model);

// Parameters that take part in one token's forward pass: experts_per_token of the experts, and everything
// else including embedding and head, as such models are usually quoted.
int64_t active_parameter_count(const ModelSettings& model);

// parameter_count() in floating point, for sizes that may not fit an integer.
double approximate_parameter_count(const ModelSettings& model);

}  // namespace moelab
