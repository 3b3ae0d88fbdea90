#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/element.h"
#include "kernels/device/launch.h"
#include "kernels/update/capturable_step_device.h"

// The optimizers' steps on CUDA; what each computes is said where its operator is declared. Pointers are to n
// elements in device memory unless said otherwise. The host does not wait for the device.
namespace moelab::cuda {

// Weights as in SteppedWeights (kernels/update/stepped_weights.h): fp32, perhaps with a 16-bit copy, or bf16
// alone, rounded stochastically under `key`.
struct WeightPointers {
  float* fp32 = nullptr;
  void *bf16 = nullptr, *half = nullptr;
  uint64_t key = 0;
};

struct GradientPointer {
  const void* data;
  Element element;
};

// For calls whose step is read from device memory when they run.
struct CapturableCall {
  const CapturableStep* step = nullptr;  // null: the call's own numbers apply
  bool decays = false;
  int64_t stream = 0, first_element = 0;  // of random numbers
};

// m and v: both fp32, or both bf16 and then rounded stochastically under `key`.
void adamw(const WeightPointers& weights, const GradientPointer& gradient, void* m, void* v,
           bool bf16_moments, uint64_t key, int64_t n, const AdamWFactors& factors,
           const CapturableCall& live, cudaStream_t stream);

// A DynamicMap in device memory: value (256) fp32, bin int32.
struct MapPointers {
  const float* value;
  const int32_t* bin;
};

// m and v are codes, with one magnitude per kQuantBlock of them.
void adam8bit(const WeightPointers& weights, const GradientPointer& gradient, uint8_t* m, float* m_absmax,
              uint8_t* v, float* v_absmax, const MapPointers& first, const MapPointers& second, int64_t n,
              const AdamWFactors& factors, const CapturableCall& live, cudaStream_t stream);

// Weights: bf16 with a correction each, or fp32 (`correction` null). One scale per kCompactGroup elements.
void adamw_compact(void* weights, int8_t* correction, const GradientPointer& gradient, int8_t* m,
                   uint16_t* m_scale, uint8_t* v, uint16_t* v_scale, int64_t n, const AdamWFactors& factors,
                   const CapturableCall& live, cudaStream_t stream);

// `rows` of `width` elements. v: one for each of the first `heads` groups of head_rows rows, then one per
// row.
struct MiniShape {
  int64_t rows, width, heads, head_rows;
};
void adam_mini(const WeightPointers& weights, const GradientPointer& gradient, float* m, float* v,
               const MiniShape& shape, const AdamWFactors& factors, const CapturableCall& live,
               cudaStream_t stream);

void momentum_step(bool lion, const WeightPointers& weights, const GradientPointer& gradient, float* m,
                   int64_t n, const MomentumFactors& factors, const CapturableCall& live,
                   cudaStream_t stream);

inline constexpr int64_t kFactoredStrip = 32;  // columns of one matrix that a block of threads sums
struct FactoredShape {
  int64_t experts, rows, columns;
  int64_t elements() const { return experts * rows * columns; }
  int64_t strips() const { return experts * ceil_div(columns, kFactoredStrip); }
  // Doubles of scratch for one step.
  int64_t scratch() const { return experts * rows + 2 * experts; }
};
// row (experts, rows), column (experts, columns) fp32.
void adafactor(const WeightPointers& weights, const GradientPointer& gradient, float* row, float* column,
               double* scratch, const FactoredShape& shape, const FactoredFactors& factors,
               const CapturableCall& live, cudaStream_t stream);

// settle() (kernels/update/capturable_step_device.h) on the device; all pointers are to device memory.
void settle_step(CapturableStep* live, const double* squares, int64_t count, const double* loss, double clip,
                 cudaStream_t stream);

}  // namespace moelab::cuda
