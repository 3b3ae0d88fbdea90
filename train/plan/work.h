#pragma once
#include <array>
#include <cstddef>
#include <string_view>

#include "train/config/settings.h"

namespace moelab {

// What one optimizer step spends its time on, each counted in a unit of its own: the terms of the cost model.
enum class Effort {
  products_fp32,  // FLOPs of matrix products outside of attention, by precision.compute
  products_bf16,
  products_fp16,
  products_fp8,
  attention_fp32,  // FLOPs between queries, keys and values
  attention_16bit,
  score_bytes,     // of S x S scores, once a forward pass
  dispatch_bytes,  // of one-hot dispatch tensors, once a forward pass
  row_bytes,       // that a forward pass writes outside of products: norms, activations, gathered rows
  logit_elements,  // tokens x vocabulary
  update_adamw,    // parameters stepped, by rule
  update_bf16_moments,
  update_adam8bit,
  update_adamw_compact,
  update_adam_mini,
  update_lion,
  update_adafactor,
  update_sgd,
  update_without_master,  // parameters rounded stochastically, besides their rule
  gradient_bytes,         // added to fp32 sums over micro-batches
  int8_elements,          // of saved activations, coded and decoded
  fp8_elements,
  weight_elements,  // decoded for a product
  host_bytes,       // moved between device and host, both ways together
  nvme_bytes,       // read and written
  block_passes,     // calls of one block, forward or backward, whatever its size
};
inline constexpr size_t kEfforts = 26;
std::string_view effort_name(Effort effort);

using Work = std::array<double, kEfforts>;

// The work of one optimizer step of a resolved run, in closed form. Products count what is computed: rows of
// capacity buffers, filled or not, and what recomputation repeats, where model_flops_per_token counts the
// model alone.
Work step_work(const Settings& settings);

}  // namespace moelab
