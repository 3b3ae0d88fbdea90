#include "train/placement/state_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "kernels/memory/ledger.h"
#include "kernels/update/squared_norm.h"

namespace moelab {
namespace {

Home gradient_home(const PlacementSettings& settings, c10::Device device) {
  const bool down = device.is_cuda() && settings.optimizer != Home::device;
  return settings.gradients == Home::device && down ? Home::host : settings.gradients;
}

// 0 if the gradient is no longer in memory.
double squared_norm_of(const Parameter& parameter) {
  return parameter.gradient().defined() ? squared_norm(parameter.gradient()) : 0;
}

// For all gradients on a CUDA device at once, so that the host waits only once.
double squared_norm_there(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> squares;
  for (const Parameter& parameter : parameters)
    if (parameter.gradient().defined()) squares.push_back(cuda_squared_norm(parameter.gradient()));
  if (squares.empty()) return 0;
  const at::Tensor all = at::stack(squares).cpu();
  const auto* const square = all.const_data_ptr<double>();
  return std::accumulate(square, square + all.numel(), 0.0);
}

// In blocks, because LibTorch would first copy all of `part` to the sum's type. On meta one block stands for
// all.
void add_in_blocks(const at::Tensor& sum, const at::Tensor& part) {
  const at::Tensor to = sum.view(-1), from = part.view(-1);
  const int64_t end = to.is_meta() ? std::min(kNormBlock, to.numel()) : to.numel();
  for (int64_t first = 0; first < end; first += kNormBlock) {
    const int64_t count = std::min(kNormBlock, end - first);
    to.narrow(0, first, count).add_(from.narrow(0, first, count).to(to.scalar_type()));
  }
}

}  // namespace

std::shared_ptr<StateFile> make_state_file(const PlacementSettings& settings, c10::Device device) {
  if (settings.gradients != Home::nvme && settings.optimizer != Home::nvme) return nullptr;
  return std::make_shared<StateFile>(settings, device);
}

GradientStore::GradientStore(const PlacementSettings& settings, c10::Device device, Optimizer& optimizer,
                             std::shared_ptr<StateFile> file, Communicator& ranks)
    : home_(gradient_home(settings, device)),
      device_(device),
      optimizer_(optimizer),
      file_(std::move(file)),
      ranks_(ranks),
      copies_(device) {}

c10::ScalarType GradientStore::sum_type(const Parameter& parameter) const {
  return micro_batches_ > 1 ? at::kFloat : parameter.value.scalar_type();
}

void GradientStore::take(size_t index) {
  const at::NoGradGuard no_grad;
  stored_.resize(optimizer_.parameters().size());
  Parameter& parameter = optimizer_.parameters()[index];
  at::Tensor& gradient = parameter.value.mutable_grad();
  if (ranks_.size() > 1) {
    add_of_ranks(index);
  } else if (home_ == Home::device && gradient.scalar_type() == sum_type(parameter)) {
    return retag(gradient, Kind::gradients);  // autograd itself sums fp32 gradients
  } else {
    add(index, gradient);
  }
  gradient.reset();
}

// The first gradient may become the sum itself, so this rank's is sent before it is added.
void GradientStore::add_of_ranks(size_t index) {
  const at::Tensor own = optimizer_.parameters()[index].value.grad();
  std::vector<std::unique_ptr<Transfer>> sent;
  for (int64_t i = 1; i < ranks_.size(); ++i)
    sent.push_back(ranks_.send(own, (ranks_.rank() + i) % ranks_.size()));
  for (int64_t r = 0; r < ranks_.size(); ++r) {
    if (r == ranks_.rank()) {
      for (const auto& transfer : sent) transfer->wait();
      add(index, own);
      continue;
    }
    const KindScope kind(Kind::communication);
    const at::Tensor received = at::empty_like(own);
    ranks_.receive(received, r)->wait();
    add(index, received);
  }
}

void GradientStore::add(size_t index, const at::Tensor& gradient) {
  switch (home_) {
    case Home::device:
      return keep(optimizer_.parameters()[index], gradient);
    case Home::host:
      return to_host(optimizer_.parameters()[index], stored_[index], gradient);
    case Home::nvme:
      return to_file(index, stored_[index], gradient);
  }
}

void GradientStore::keep(Parameter& parameter, const at::Tensor& gradient) {
  if (!parameter.accumulated.defined()) {
    const KindScope kind(Kind::gradients);
    parameter.accumulated = gradient.to(at::kFloat);
    retag(parameter.accumulated, Kind::gradients);
  } else if (gradient.is_cuda()) {
    parameter.accumulated.add_(gradient);  // reads both types directly
  } else {
    add_in_blocks(parameter.accumulated, gradient);
  }
}

// The memory is kept between steps: on CUDA it is pinned, and allocating it takes longer than filling it.
void GradientStore::to_host(Parameter& parameter, Stored& stored, const at::Tensor& gradient) {
  const KindScope kind(Kind::gradients);
  const HomeScope outside(Home::host);
  const c10::ScalarType type = sum_type(parameter);
  if (!parameter.accumulated.defined()) {
    if (!stored.memory.defined() || stored.memory.scalar_type() != type) {
      stored.memory.reset();
      stored.memory = copies_.like(gradient, type);
    }
    copies_.start(gradient, stored.memory);
    parameter.accumulated = stored.memory;
    return;
  }
  add_in_blocks(parameter.accumulated, on_host(gradient));
}

at::Tensor GradientStore::on_host(const at::Tensor& gradient) {
  if (!gradient.is_cuda()) return gradient;
  const at::Tensor there = copies_.passing(gradient, gradient.scalar_type());
  copies_.start(gradient, there);
  copies_.finish();
  return there;
}

// In multiples of the norm's blocks, so that the sum of squares is computed on the way.
void GradientStore::to_file(size_t index, Stored& stored, const at::Tensor& gradient) {
  const Parameter& parameter = optimizer_.parameters()[index];
  const at::Tensor flat = on_host(gradient).view(-1);
  const c10::ScalarType type = sum_type(parameter);
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  if (stored.bytes < flat.numel() * size) {
    stored.bytes = flat.numel() * size;
    stored.offset = file_->reserve(stored.bytes, Kind::gradients);
  }
  const int64_t step = kNormBlock * std::max<int64_t>(1, file_->request_bytes() / (kNormBlock * size));
  file_->fit(std::min(step, flat.numel()) * size);
  const int64_t visits = (flat.numel() + step - 1) / step;
  stored.norm = 0;
  const auto visit = [&](int64_t i) {
    const int64_t count = std::min(step, flat.numel() - i * step);
    return StateFile::Visit{
        {stored.offset + i * step * size, UnnamedFile::padded(count * size), stored.present, true}};
  };
  file_->run(device_.is_meta() ? std::min<int64_t>(visits, 1) : visits, visit,
             [&](int64_t i, const std::vector<at::Tensor>& bytes) {
               const at::Tensor part = flat.narrow(0, i * step, std::min(step, flat.numel() - i * step));
               const at::Tensor sum = bytes.front().narrow(0, 0, part.numel() * size).view(type);
               if (stored.present) {
                 const HomeScope outside(Home::host);
                 add_in_blocks(sum, part);
               } else {
                 sum.copy_(part);
               }
               for (int64_t first = 0; first < sum.numel(); first += kNormBlock)
                 stored.norm += squared_norm(sum.narrow(0, first, std::min(kNormBlock, sum.numel() - first)));
             });
  stored.present = true;
  optimizer_.use_stored_gradient(index, StoredGradient{stored.offset, type});
}

double GradientStore::sum_of_squares() {
  if (home_ == Home::device && device_.is_cuda()) return squared_norm_there(optimizer_.parameters());
  copies_.finish();
  double sum = 0;
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    const bool in_file = i < stored_.size() && stored_[i].present;
    sum += in_file ? stored_[i].norm : squared_norm_of(optimizer_.parameters()[i]);
  }
  return sum;
}

void GradientStore::drop() {
  // on the device nothing is copied, and a graph being captured must not wait for a stream
  if (home_ != Home::device) copies_.finish();
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    Parameter& parameter = optimizer_.parameters()[i];
    parameter.value.mutable_grad().reset();
    parameter.accumulated.reset();
    optimizer_.use_stored_gradient(i, std::nullopt);
    if (i < stored_.size()) stored_[i].present = false;
  }
}

}  // namespace moelab
