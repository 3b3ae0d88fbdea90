#pragma once
#include <ATen/core/Tensor.h>

// Maps expert ids to the rows of a buffer that is grouped by expert.
// Axes: T tokens (whole sequences of S), K choices a token, E experts, C capacity, R rows.
namespace moelab {

struct Routes {
  at::Tensor row_TK;      // int32: the row of each route; -1: dropped or not chosen
  at::Tensor offsets_E1;  // (E+1) int32: expert e has rows [offsets[e], offsets[e+1])
  at::Tensor dropped;     // () fp32: number of routes that found no row
  int64_t rows = 0;       // R, known without reading any id
  int64_t widest = 0;     // bound on the rows of one expert, known without reading any id
  bool even = false;      // by capacity: each expert has `widest` rows
};

// Rows that an expert takes from one sequence: ceil(capacity_factor * S * K / E), at most S.
int64_t expert_capacity(int64_t sequence, int64_t top_k, int64_t experts, double capacity_factor);

// Ragged groups: R = T*K, routes in token order within a group; nothing padded, nothing dropped. ids_TK int32
// in [0, E), or -1: skipped. Each skipped id leaves a row at the end that belongs to no expert.
Routes dropless_routes(const at::Tensor& ids_TK, int64_t experts);

// Groups of fixed size: R = E*B*C. A route's row is (e*B + b)*C + its place in the queue of expert e in
// sequence b; routes past C are dropped. Queues are in token order, then choice order. ids of -1 are skipped.
Routes capacity_routes(const at::Tensor& ids_TK, int64_t experts, int64_t sequence, int64_t capacity);

}  // namespace moelab
