#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/moe/dispatch.h"

// Tokens as rows grouped by expert, and back, for experts that other ranks compute. expert_block does without
// such buffers. Not differentiable. Of the routes only row_TK, offsets_E1 and the number of rows are read.
// Axes: T tokens, K routes a token, R rows of `routes`, W a width.
namespace moelab {

// (R, W): the row of each route's token; zeros where a row has no route. source_TW fp32, bf16 or fp16.
at::Tensor gather_routed(const at::Tensor& source_TW, const Routes& routes);
// (R) fp32: the weight of each row's route; 0 where a row has none. weights_TK fp32.
at::Tensor gather_routed_weights(const at::Tensor& weights_TK, const Routes& routes);
// (T, K): the value of each route's row; 0 where a route has no row.
at::Tensor values_of_routes(const at::Tensor& values_R, const Routes& routes);

// y_TW = the sum of each token's rows, times weights_TK fp32 (undefined: 1), in the order and with the
// roundings of expert_block. rows_RW: y's dtype, or on the CPU fp32.
void combine_routed(const at::Tensor& rows_RW, const at::Tensor& weights_TK, const Routes& routes,
                    const at::Tensor& y_TW);

}  // namespace moelab
