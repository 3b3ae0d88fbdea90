#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/element.h"

// What the expert block computes between its products, on device pointers. Axes: T tokens, D width, K routes
// a token, R rows grouped by expert, F expert width. Every sum has one order; the host does not wait for the
// device.
namespace moelab::cuda {

// route_R: the route (of T*K) in each row; -1: an empty row.
void invert_routes(const int32_t* row_TK, int64_t routes, int32_t* route_R, int64_t rows,
                   cudaStream_t stream);

// to[i] = from[token of row i]; zeros for empty rows. row_bytes is a multiple of 2.
void gather_rows(const void* from_TD, const int32_t* route_R, int64_t rows, int64_t K, int64_t row_bytes,
                 void* to_RD, cudaStream_t stream);

// The three with a type of their own have two functions each, [0] and [1]: a thread takes one element at a
// time, or as many as an instruction can where rows begin at multiples of 16 bytes. expert_variants.h chooses
// between them.

// to[t] = sum over k of weights[t][k] * from[row[t][k]] in fp32; without `weights` the plain sum. Rows of -1
// add nothing.
using CombineRows = void(Element element, const void* from_RD, const int32_t* row_TK, const float* weights_TK,
                         int64_t tokens, int64_t K, int64_t D, void* to_TD, cudaStream_t stream);

// a (rows, F) = silu(gate) * up of h (rows, 2F) = [gate | up]. With `route_R`, empty rows become zeros, in h
// too.
using Swiglu = void(Element element, void* h, const int32_t* route_R, int64_t rows, int64_t F, void* a,
                    cudaStream_t stream);

// In: h, and da (rows, F) = W2^T dy, without router weights. Out: h becomes its gradient, da becomes scale *
// activation (what dW2 needs), dscale (rows) = <da, activation>. A row's scale is its route's weight in
// weights_TK. With `route_R`, empty rows become zeros; without it, weights and dscale are null and all scales
// are 1.
using SwigluBackward = void(Element element, void* h, void* da, const int32_t* route_R,
                            const float* weights_TK, float* dscale_R, int64_t rows, int64_t F,
                            cudaStream_t stream);

extern CombineRows* const combine_rows_packed[2];
extern Swiglu* const swiglu_packed[2];
extern SwigluBackward* const swiglu_backward_packed[2];

// dweights[i] = dscale[row[i]]; 0 for -1.
void gather_scales(const float* dscale_R, const int32_t* row_TK, int64_t routes, float* dweights_TK,
                   cudaStream_t stream);

}  // namespace moelab::cuda
