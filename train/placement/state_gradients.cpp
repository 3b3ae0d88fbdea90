#include "train/placement/state_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "kernels/memory/ledger.h"
#include "kernels/update/squared_norm.h"
#include "train/parallel/data_ranks.h"

namespace moelab {
namespace {

Home gradient_home(const PlacementSettings& settings, c10::Device device) {
  const bool down = device.is_cuda() && settings.optimizer != Home::device;
  return settings.gradients == Home::device && down ? Home::host : settings.gradients;
}

// Elements of a row of the model's weight, which add_squares takes whole.
int64_t row_of(const at::Tensor& leaf) { return leaf.dim() > 0 ? leaf.size(-1) : 1; }

// Each number's sum over the ranks.
void add_over_ranks(Communicator& ranks, std::vector<ExactSum>& sums) {
  std::vector<int64_t> own;
  for (ExactSum& sum : sums) own.insert(own.end(), sum.words().begin(), sum.words().end());
  const std::vector<int64_t> all = ranks.agree(own);
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = {};
    for (int64_t r = 0; r < ranks.size(); ++r) {
      const int64_t* const words = &all[r * own.size() + i * ExactSum::kWords];
      sums[i].add(std::span<const int64_t, ExactSum::kWords>(words, ExactSum::kWords));
    }
  }
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

constexpr int64_t kAddBlock = 65536;  // elements

// In blocks, because LibTorch would first copy all of `part` to the sum's type. On meta one block stands for
// all.
void add_in_blocks(const at::Tensor& sum, const at::Tensor& part) {
  const at::Tensor to = sum.view(-1), from = part.view(-1);
  const int64_t end = to.is_meta() ? std::min(kAddBlock, to.numel()) : to.numel();
  for (int64_t first = 0; first < end; first += kAddBlock) {
    const int64_t count = std::min(kAddBlock, end - first);
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
  at::Tensor& gradient = optimizer_.leaf(index).mutable_grad();
  if (ranks_.size() > 1) {
    add_of_ranks(index);
  } else if (home_ == Home::device && gradient.scalar_type() == sum_type(optimizer_.parameters()[index])) {
    return retag(gradient, Kind::gradients);  // autograd itself sums fp32 gradients
  } else {
    add(index, gradient);
  }
  gradient.reset();
}

// The first gradient may become the sum itself, so this rank's is sent before it is added.
void GradientStore::add_of_ranks(size_t index) {
  const at::Tensor own = optimizer_.leaf(index).grad();
  const Parameter& kept = optimizer_.parameters()[index];
  const auto of_rank = [&](int64_t r) {  // what rank r keeps of this rank's gradient
    if (!optimizer_.divided()) return own;
    const Parts& parts = optimizer_.parts(index);
    return own.view(-1).narrow(0, parts.first_element(r), parts.rows(r) * parts.row_elements());
  };
  std::vector<std::unique_ptr<Transfer>> sent;
  for (int64_t i = 1; i < ranks_.size(); ++i) {
    const int64_t to = (ranks_.rank() + i) % ranks_.size();
    sent.push_back(ranks_.send(of_rank(to), to));
  }
  for (int64_t r = 0; r < ranks_.size(); ++r) {
    if (r == ranks_.rank()) {
      for (const auto& transfer : sent) transfer->wait();
      add(index, of_rank(r).view(kept.value.sizes()));
      continue;
    }
    const KindScope kind(Kind::communication);
    const at::Tensor received = at::empty(kept.value.sizes(), own.options());
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
    const bool is_part = gradient.nbytes() < gradient.storage().nbytes();  // of what is to be freed
    parameter.accumulated = gradient.to(at::kFloat, /*non_blocking=*/false, /*copy=*/is_part);
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

// Whole rows at a time, so that their squares are added on the way, and whole sectors.
void GradientStore::to_file(size_t index, Stored& stored, const at::Tensor& gradient) {
  const Parameter& parameter = optimizer_.parameters()[index];
  const at::Tensor flat = on_host(gradient).view(-1);
  if (flat.numel() == 0) return;  // another rank's
  const c10::ScalarType type = sum_type(parameter);
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  if (stored.bytes < flat.numel() * size) {
    stored.bytes = flat.numel() * size;
    stored.offset = file_->reserve(stored.bytes, Kind::gradients);
  }
  const int64_t row = row_of(optimizer_.leaf(index)), unit = std::lcm(row, UnnamedFile::kAlign / size),
                step = unit * std::max<int64_t>(1, file_->request_bytes() / (unit * size));
  file_->fit(std::min(step, flat.numel()) * size);
  const int64_t visits = (flat.numel() + step - 1) / step;
  stored.squares = {};
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
               add_squares(sum, row, stored.squares);
             });
  stored.present = true;
  optimizer_.use_stored_gradient(index, StoredGradient{stored.offset, type});
}

double GradientStore::sum_of_squares(Communicator& control) {
  double sum = 0;
  if (home_ == Home::device && device_.is_cuda()) {
    const double own = squared_norm_there(optimizer_.parameters());
    if (!optimizer_.divided()) return own;
    for (const double one : of_all_ranks(control, own)) sum += one;
    return sum;
  }
  copies_.finish();
  std::vector<ExactSum> each;
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) each.push_back(own_squares(i));
  if (optimizer_.divided()) add_over_ranks(control, each);
  for (const ExactSum& one : each) sum += one.value();
  return sum;
}

double GradientStore::squares_of(size_t index, Communicator& control) {
  std::vector<ExactSum> one{own_squares(index)};
  if (optimizer_.divided()) add_over_ranks(control, one);
  return one.front().value();
}

// Nothing where the gradient is no longer in memory.
ExactSum GradientStore::own_squares(size_t index) const {
  if (index < stored_.size() && stored_[index].present) return stored_[index].squares;
  ExactSum squares;
  const at::Tensor& gradient = optimizer_.parameters()[index].gradient();
  if (!gradient.defined()) return squares;
  if (gradient.is_cpu()) {
    add_squares(gradient, row_of(optimizer_.leaf(index)), squares);
  } else {
    squares.add(squared_norm(gradient));
  }
  return squares;
}

void GradientStore::drop() {
  // on the device nothing is copied, and a graph being captured must not wait for a stream
  if (home_ != Home::device) copies_.finish();
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) drop(i);
}

void GradientStore::drop(size_t index) {
  optimizer_.leaf(index).mutable_grad().reset();
  optimizer_.parameters()[index].accumulated.reset();
  optimizer_.use_stored_gradient(index, std::nullopt);
  if (index < stored_.size()) stored_[index].present = false;
}

}  // namespace moelab
