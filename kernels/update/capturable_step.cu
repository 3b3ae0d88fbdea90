#include "kernels/update/update_rules.h"

namespace moelab::cuda {
namespace {

// One thread, so that the sum has the host's order; there is one number per parameter.
__global__ void settle_kernel(CapturableStep* live, const double* squares, int64_t count, const double* loss,
                              double clip) {
  settle(*live, squares, count, *loss, clip);
}

}  // namespace

void settle_step(CapturableStep* live, const double* squares, int64_t count, const double* loss, double clip,
                 cudaStream_t stream) {
  settle_kernel<<<1, 1, 0, stream>>>(live, squares, count, loss, clip);
}

}  // namespace moelab::cuda
