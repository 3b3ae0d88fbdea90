#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace moelab::bench {

// What this machine, or its GPU, reaches with LibTorch's own operators on as many threads as the benchmarks;
// each is measured once, when it is first asked for.

// FLOP/s of a square product in fp32 or bf16: on the CPU measure_gemm_rate's (train/run/flops.h), on CUDA one
// that is large enough to fill the device. Throws c10::Error for other types.
double gemm_rate(c10::Device device, at::ScalarType dtype);

// Bytes/s of a copy that moves about `bytes` in all, read and written, under the benchmarks' own conditions:
// operands that the shared cache holds are judged by a copy that it holds as well. At most kLargestCopy each
// way.
double copy_rate(c10::Device device, double bytes);
inline constexpr double kLargestCopy = 256e6;

}  // namespace moelab::bench
