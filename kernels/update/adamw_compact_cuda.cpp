#include <ATen/ATen.h>

#include "kernels/update/step_factors.h"
#include "kernels/update/update_operator_cuda.h"

namespace moelab {
namespace {

using at::Tensor;

void step_cuda(const UpdateTensors& t, const OptimizerStep& step, const cuda::CapturableCall& live,
               cudaStream_t stream) {
  const Tensor &m = t.state[0], &m_scale = t.state[1], &v = t.state[2], &v_scale = t.state[3];
  int8_t* const correction = t.state.size() > 4 ? t.state[4].data_ptr<int8_t>() : nullptr;
  const auto scales = [](const Tensor& x) { return reinterpret_cast<uint16_t*>(x.data_ptr<int16_t>()); };
  cuda::adamw_compact(t.weights.data_ptr(), correction, cuda::gradient_pointer(t.gradient),
                      m.data_ptr<int8_t>(), scales(m_scale), v.data_ptr<uint8_t>(), scales(v_scale),
                      t.weights.numel(), adamw_factors(step), live, stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adamw_compact_", update_on_cuda<step_cuda>); }

}  // namespace moelab
