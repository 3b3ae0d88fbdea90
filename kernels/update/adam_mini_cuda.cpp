#include <ATen/ATen.h>

#include "kernels/update/step_factors.h"
#include "kernels/update/update_operator_cuda.h"

namespace moelab {
namespace {

void step_cuda(const UpdateTensors& t, const OptimizerStep& step, const cuda::CapturableCall& live,
               cudaStream_t stream) {
  const int64_t rows = t.blocks[0], heads = t.blocks[1], head_rows = t.blocks[2];
  cuda::adam_mini(cuda::weight_pointers(t.weights, t.compute_copy, step), cuda::gradient_pointer(t.gradient),
                  t.state[0].data_ptr<float>(), t.state[1].data_ptr<float>(),
                  {rows, t.weights.numel() / rows, heads, head_rows}, adamw_factors(step), live, stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adam_mini_", update_on_cuda<step_cuda>); }

}  // namespace moelab
