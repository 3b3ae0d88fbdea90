#include <ATen/ATen.h>

#include "kernels/update/step_factors.h"
#include "kernels/update/update_operator_cuda.h"

namespace moelab {
namespace {

template <bool lion>
void step_cuda(const UpdateTensors& t, const OptimizerStep& step, const cuda::CapturableCall& live,
               cudaStream_t stream) {
  cuda::momentum_step(lion, cuda::weight_pointers(t.weights, t.compute_copy, step),
                      cuda::gradient_pointer(t.gradient), t.state[0].data_ptr<float>(), t.weights.numel(),
                      momentum_factors(step), live, stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("lion_", update_on_cuda<step_cuda</*lion=*/true>>);
  m.impl("sgd_", update_on_cuda<step_cuda</*lion=*/false>>);
}

}  // namespace moelab
