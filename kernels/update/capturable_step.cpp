#include "kernels/update/capturable_step.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "kernels/operator/op_handle.h"
#include "kernels/update/squared_norm.h"
#include "kernels/update/step_factors.h"

namespace moelab {
namespace {

using at::Tensor;

static_assert(std::is_trivially_copyable_v<CapturableStep>);
constexpr auto kBytes = static_cast<int64_t>(sizeof(CapturableStep));

void check(const Tensor& live, const Tensor& squares, const Tensor& loss) {
  TORCH_CHECK(live.scalar_type() == at::kByte && live.numel() == kBytes && live.is_contiguous(),
              "settle_step: not a capturable step");
  TORCH_CHECK(squares.dim() == 1 && squares.is_contiguous() && squares.scalar_type() == at::kDouble &&
                  loss.dim() == 0 && loss.scalar_type() == at::kDouble,
              "settle_step: squares must be (n) fp64, contiguous, and the loss () fp64");
}

void settle_cpu(Tensor live, const Tensor& squares, const Tensor& loss, double clip) {
  CapturableStep s = read_capturable_step(live);
  settle(s, squares.const_data_ptr<double>(), squares.numel(), *loss.const_data_ptr<double>(), clip);
  write_capturable_step(live, s);
}

void settle_meta(Tensor, const Tensor&, const Tensor&, double) {}

}  // namespace

Tensor make_capturable_step(c10::Device device) {
  const Tensor live = at::empty({kBytes}, at::TensorOptions().device(device).dtype(at::kByte));
  write_capturable_step(live, {});
  return live;
}

CapturableStep capturable_step(const OptimizerStep& numbers, double loss_scale) {
  const AdamWFactors adamw = adamw_factors(numbers);
  CapturableStep live;
  live.lr = numbers.lr;
  live.loss_scale = loss_scale;
  live.step = numbers.step;
  live.keep = adamw.keep;
  live.rate = static_cast<float>(numbers.lr);
  live.step_size = adamw.step_size;
  live.inverse_root = adamw.inverse_root;
  live.factored_beta = factored_beta(numbers);
  return live;
}

void write_capturable_step(const Tensor& live, const CapturableStep& numbers) {
  // host memory that is not pinned has been copied by the driver when the call returns
  if (live.is_meta()) return;
  live.copy_(at::from_blob(const_cast<CapturableStep*>(&numbers), {kBytes}, at::kByte),
             /*non_blocking=*/true);
}

CapturableStep read_capturable_step(const Tensor& live) {
  CapturableStep numbers;
  if (!live.is_meta()) std::memcpy(&numbers, live.cpu().const_data_ptr(), sizeof numbers);
  return numbers;
}

Tensor capturable_loss_scale(const Tensor& live) {
  constexpr auto kLossScale = static_cast<int64_t>(offsetof(CapturableStep, loss_scale));
  return live.narrow(0, kLossScale, sizeof(CapturableStep::loss_scale)).view(at::kDouble).select(0, 0);
}

Tensor skipped_step(const Tensor& live) {
  constexpr auto kSkipped = static_cast<int64_t>(offsetof(CapturableStep, skipped));
  return live.narrow(0, kSkipped, sizeof(CapturableStep::skipped)).view(at::kInt);
}

Tensor squared_norm_tensor(const Tensor& x) {
  if (!x.is_cuda()) return at::full({}, squared_norm(x), x.options().dtype(at::kDouble));
  return cuda_squared_norm(x);
}

void settle_step_(const Tensor& live, const Tensor& squares, const Tensor& loss, double clip) {
  check(live, squares, loss);
  static const auto op =
      operator_handle<void(Tensor, const Tensor&, const Tensor&, double)>("moelab::settle_step_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.call(live, squares, loss, clip);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("settle_step_(Tensor(a!) live, Tensor squares, Tensor loss, float clip) -> ()");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) { m.impl("settle_step_", &settle_cpu); }

TORCH_LIBRARY_IMPL(moelab, Meta, m) { m.impl("settle_step_", &settle_meta); }

}  // namespace moelab
