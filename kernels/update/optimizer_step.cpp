#include "kernels/update/optimizer_step.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/update/capturable_step.h"

namespace moelab {

std::optional<OptimizerStep> step_now(at::ArrayRef<double> numbers, at::IntArrayRef counters,
                                      const std::optional<at::Tensor>& live) {
  OptimizerStep step = step_from(numbers, counters);
  if (!live) return step;
  const CapturableStep now = read_capturable_step(*live);
  if (now.skipped != 0) return std::nullopt;
  step.lr = now.lr;
  step.step = now.step;
  step.gradient_scale = now.gradient_scale;
  return step;
}

void check_step(const char* rule, const at::Tensor& weights, const at::Tensor& gradient,
                const std::optional<at::Tensor>& compute_copy) {
  const auto ok = [&](const at::Tensor& t, std::initializer_list<at::ScalarType> types) {
    const bool type = std::find(types.begin(), types.end(), t.scalar_type()) != types.end();
    return type && t.is_contiguous() && t.numel() == weights.numel();
  };
  TORCH_CHECK(ok(weights, {at::kFloat}) || (ok(weights, {at::kBFloat16}) && !compute_copy), rule,
              ": the weights must be contiguous fp32, or bf16 without a compute copy");
  TORCH_CHECK(ok(gradient, {at::kFloat, at::kBFloat16, at::kHalf}), rule, ": gradient ", gradient.sizes(),
              " ", gradient.scalar_type(), " must be contiguous fp32, bf16 or fp16 of the weights' size ",
              weights.sizes());
  TORCH_CHECK(!compute_copy || ok(*compute_copy, {at::kBFloat16, at::kHalf}), rule,
              ": the compute copy must be contiguous bf16 or fp16 of the weights' size");
}

void check_state(const char* rule, const char* name, const at::Tensor& state, at::ScalarType dtype,
                 int64_t elements) {
  TORCH_CHECK(state.scalar_type() == dtype && state.is_contiguous() && state.numel() == elements, rule, ": ",
              name, " must be contiguous ", dtype, " of ", elements, " elements, not ", state.scalar_type(),
              " ", state.sizes());
}

}  // namespace moelab
