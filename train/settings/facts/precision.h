#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/formats/quantize.h"
#include "train/settings/facts/element_type.h"
#include "train/settings/facts/technique.h"
#include "train/settings/settings.h"

// Facts about each value of precision.compute, store and master.
namespace moelab {

struct ComputeFacts {
  ElementType type;  // of matrices and activations; norms and routers are fp32
  // Cost-model terms: the blocks' products, the head's product, and the products of queries, keys and values.
  std::string_view products, head_products, attention;
  std::string_view slow_on_gpu = {};  // why it is slow there, as a sentence; empty: it is not
};
const ComputeFacts& compute_facts(ComputePrecision compute);

// Bytes of an element of a matrix or an activation.
inline double element_bytes(const Settings& settings) {
  return static_cast<double>(bytes_of(compute_facts(settings.precision.compute).type));
}

// Bytes of an element of a sum of gradients over several micro-batches.
inline double sum_bytes(const Settings& settings) {
  return settings.precision.gradient_sums == GradientSums::fp32 ? 4 : element_bytes(settings);
}

// The 8-bit code that precision.store uses, in blocks of kQuantBlock; none if weights are held in the type of
// the products.
std::optional<BlockCode> weight_code(const PrecisionSettings& precision);

// Whether 16-bit weights have fp32 masters: not with precision.master=none, nor with a rule that needs none.
bool keeps_masters(const Settings& settings);

// Throws UserError when precision.* conflicts with another setting.
void check_precision(const Settings& settings);

// What 16-bit compute holds beside fp32, for a row of the technique table: activations, and the state of P
// parameters (weights, masters, gradients, AdamW's moments).
std::string sixteen_bit_text(MasterWeights master);

// Rows of the technique table: precision.compute and master; precision.store.
std::vector<Technique> precision_rows();
std::vector<Technique> weight_store_rows();

}  // namespace moelab
