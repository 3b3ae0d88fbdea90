#include <ATen/ATen.h>

#include "kernels/update/step_factors.h"
#include "kernels/update/update_operator_cuda.h"

namespace moelab {
namespace {

using at::Tensor;

void step_cuda(const UpdateTensors& t, const OptimizerStep& step, const cuda::CapturableCall& live,
               cudaStream_t stream) {
  const Tensor &m = t.state[0], &v = t.state[1];
  cuda::adamw(cuda::weight_pointers(t.weights, t.compute_copy, step), cuda::gradient_pointer(t.gradient),
              m.data_ptr(), v.data_ptr(), m.scalar_type() == at::kBFloat16, cuda::moment_key(step),
              t.weights.numel(), adamw_factors(step), live, stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adamw_", update_on_cuda<step_cuda>); }

}  // namespace moelab
