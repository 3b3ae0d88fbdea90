#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/quantize.h"
#include "train/config/facts/element_type.h"
#include "train/config/facts/technique.h"
#include "train/config/settings.h"

// What each precision says of itself: precision.compute, store and master.
namespace moelab {

struct ComputeFacts {
  ElementType type;  // of matrices and activations; norms and routers are fp32
  // Terms of the cost model: products of the blocks, of the head, and those between queries, keys and values.
  std::string_view products, head_products, attention;
};
const ComputeFacts& compute_facts(ComputePrecision compute);

// Bytes of a matrix's element, and of an activation's.
inline double element_bytes(const Settings& settings) {
  return static_cast<double>(bytes_of(compute_facts(settings.precision.compute).type));
}

// The code of precision.store, in blocks of kQuantBlock; none where weights are held as products take them.
std::optional<BlockCode> weight_code(const PrecisionSettings& precision);

// Whether 16-bit weights have fp32 masters behind them: not with precision.master=none, nor under a rule that
// does without.
bool keeps_masters(const Settings& settings);

// Throws UserError for what a precision cannot stand beside.
void check_precision(const Settings& settings);

// Rows of the table of techniques: of precision.compute and master, and of precision.store.
std::vector<Technique> precision_rows();
std::vector<Technique> weight_store_rows();

}  // namespace moelab
