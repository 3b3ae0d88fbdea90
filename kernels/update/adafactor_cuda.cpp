#include <ATen/ATen.h>

#include "kernels/update/adafactor_parts.h"
#include "kernels/update/step_factors.h"
#include "kernels/update/update_operator_cuda.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace adafactor_detail;

void step_cuda(const UpdateTensors& t, const OptimizerStep& step, const cuda::CapturableCall& live,
               cudaStream_t stream) {
  const Tensor &row = t.state[0], &column = t.state[1];
  const Shape s = shape_of(t.weights);
  const cuda::FactoredShape shape{s.experts, s.rows, s.columns};
  const Tensor scratch = at::empty({shape.scratch()}, row.options().dtype(at::kDouble));
  cuda::adafactor(cuda::weight_pointers(t.weights, t.compute_copy, step), cuda::gradient_pointer(t.gradient),
                  row.data_ptr<float>(), column.data_ptr<float>(), scratch.data_ptr<double>(), shape,
                  factored_factors(step), live, stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adafactor_", update_on_cuda<step_cuda>); }

}  // namespace moelab
