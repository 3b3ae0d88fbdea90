#include "train/optim/host_copy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kernels/memory/host_memory.h"
#include "kernels/memory/ledger.h"

namespace moelab {

at::Tensor HostCopy::like(const at::Tensor& tensor, c10::ScalarType type) const {
  const int64_t bytes = tensor.numel() * static_cast<int64_t>(c10::elementSize(type));
  return host_memory(bytes, copies_.device()).view(type).view(tensor.sizes());
}

at::Tensor HostCopy::passing(const at::Tensor& tensor, c10::ScalarType type) const {
  if (!copies_.device().is_cuda()) return like(tensor, type);
  return at::empty(tensor.sizes(), at::TensorOptions().dtype(type).pinned_memory(true));
}

void HostCopy::start(const at::Tensor& from, const at::Tensor& to) {
  const at::NoGradGuard no_grad;
  const HomeScope outside(Home::host);
  const WaitClock::Scope wait(waits_);
  copies_.follow();
  copies_.copy(to, from);
  copies_.keep(from);
  copies_.keep(to);
}

void HostCopy::finish() {
  if (!copies_.device().is_cuda()) return;  // start() has copied
  const WaitClock::Scope wait(waits_);
  copies_.synchronize();
}

void HostCopy::join() { copies_.join(); }

}  // namespace moelab
