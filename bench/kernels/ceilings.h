#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace moelab::bench {

// Peak rates that this machine, or its GPU, reaches with LibTorch's own operators on as many threads as the
// benchmarks use. Each rate is measured once, on first use.

// FLOP/s of a square matrix product in fp32 or bf16. On the CPU: measure_gemm_rate (train/step/flops.h). On
// CUDA: measured with a product that is large enough to fill the device. Throws c10::Error for other types.
double gemm_rate(c10::Device device, at::ScalarType dtype);

// Bytes/s (read plus written) of a copy that moves about `bytes` in all, at most kLargestCopy each way. The
// copy is as large as the operator's traffic, so that operands that fit the shared cache are compared with a
// copy that fits it too.
double copy_rate(c10::Device device, double bytes);
inline constexpr double kLargestCopy = 256e6;

}  // namespace moelab::bench
