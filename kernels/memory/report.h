#pragma once
#include <string>
#include <utility>
#include <vector>

#include "kernels/memory/ledger.h"

namespace moelab {

// "512 B", "1.5 KiB", "20.0 MiB", "1.5 GiB", "2.0 TiB": one decimal from KiB on, powers of 1024.
std::string human_bytes(int64_t bytes);

// The kinds as reports name them. `parameters` and `activations` are totals, followed by their parts as
// "parameters.experts", "activations.attention" and so on; the names without a dot add up to the total.
std::vector<std::pair<std::string, int64_t>> kind_report(const KindBytes& bytes);

}  // namespace moelab
