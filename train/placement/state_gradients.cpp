#include "train/placement/state_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/update/ordered_sum.h"
#include "kernels/update/squared_norm.h"
#include "train/settings/facts/placement.h"

namespace moelab {
namespace {

bool stands_for_cuda(c10::Device device) { return device.is_cuda() || (device.is_meta() && meta_is_cuda()); }

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

at::Tensor as_row(const at::Tensor& gradient) { return gradient.view({1, -1}); }

// Adds rows to `sum`, which becomes a tensor of these sizes and type with the first of them.
void add_rows(at::Tensor& sum, const at::Tensor& rows_RN, at::IntArrayRef sizes, c10::ScalarType type) {
  const bool fresh = !sum.defined();
  if (fresh) {
    const KindScope kind(Kind::gradients);
    sum = at::empty(sizes, rows_RN.options().dtype(type));
  }
  add_in_order(sum.view(-1), rows_RN, fresh);
}

}  // namespace

std::shared_ptr<StateFile> make_state_file(const PlacementSettings& settings, c10::Device device) {
  if (settings.gradients != Home::nvme && settings.optimizer != Home::nvme) return nullptr;
  return std::make_shared<StateFile>(settings, device);
}

GradientStore::GradientStore(const PlacementSettings& settings, c10::Device device, Optimizer& optimizer,
                             std::shared_ptr<StateFile> file, DataRanks ranks, Reduction reduction,
                             GradientSums sums)
    : home_(gradient_home(settings, stands_for_cuda(device))),
      device_(device),
      optimizer_(optimizer),
      file_(std::move(file)),
      ranks_(ranks),
      reduction_(reduction),
      sums_(sums),
      copies_(device) {}

c10::ScalarType GradientStore::sum_type(const Parameter& parameter) const {
  const c10::ScalarType type = parameter.value.scalar_type();
  const bool wider = micro_batches_ > 1 && sums_ == GradientSums::fp32;
  return wider ? at::kFloat : type;
}

void GradientStore::take(size_t index) {
  const at::NoGradGuard no_grad;
  if (stored_.empty()) prepare();
  at::Tensor& gradient = optimizer_.leaf(index).mutable_grad();
  if (ranks_.size() > 1) {
    at::Tensor own = gradient;
    if (!add_own(index, own)) return;
    start_exchange(index, own);
  } else if (home_ == Home::device && gradient.scalar_type() == sum_type(optimizer_.parameters()[index])) {
    return retag(gradient, Kind::gradients);  // autograd itself sums in the gradients' type
  } else {
    add(index, as_row(gradient));
  }
  gradient.reset();
}

void GradientStore::take(size_t index, int64_t sender, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (stored_.empty()) prepare();
  const Parameter& parameter = optimizer_.parameters()[index];
  if (ranks_.gradients_of(parameter).size() == 1) return add(index, as_row(gradient));
  if (sums_first()) return add_own_version(index, gradient);
  put_version(index, sender, gradient);
  const int64_t senders = ranks_.experts->size();
  if (sender + 1 == senders) start_exchange(index, std::exchange(stored_[index].versions, {}), senders);
}

void GradientStore::add_own_version(size_t index, const at::Tensor& gradient) {
  Stored& stored = stored_[index];
  add_rows(stored.own, as_row(gradient), gradient.sizes(), sum_type(optimizer_.parameters()[index]));
  if (++stored.taken < micro_batches_here() * ranks_.experts->size()) return;
  stored.taken = 0;
  start_exchange(index, std::exchange(stored.own, {}));
}

// What one rank takes of all versions lies together.
void GradientStore::put_version(size_t index, int64_t sender, const at::Tensor& gradient) {
  const int64_t senders = ranks_.experts->size();
  at::Tensor& versions = stored_[index].versions;
  if (sender == 0) {
    const KindScope kind(Kind::communication);
    versions = at::empty({senders * gradient.numel()}, gradient.options());
  }
  std::vector<int64_t> counts = {gradient.numel()};
  if (optimizer_.divided()) counts = optimizer_.parts(index).elements();
  int64_t first = 0;
  for (const int64_t count : counts) {
    versions.narrow(0, first * senders + sender * count, count)
        .copy_(gradient.view(-1).narrow(0, first, count));
    first += count;
  }
}

// Whether `gradient` is what the other ranks need now: by itself, or as the sum of this rank's micro-batches,
// which it has become. If not, it was added, and waits for the next micro-batch.
bool GradientStore::add_own(size_t index, at::Tensor& gradient) {
  if (!sums_first()) return true;
  Stored& stored = stored_[index];
  const c10::ScalarType type = sum_type(optimizer_.parameters()[index]);
  if (gradient.scalar_type() != type) {  // else autograd itself sums them
    add_rows(stored.own, as_row(gradient), gradient.sizes(), type);
    gradient = stored.own;
    optimizer_.leaf(index).mutable_grad().reset();
  }
  retag(gradient, Kind::gradients);
  if (++stored.taken < micro_batches_here()) return false;
  stored.taken = 0;
  stored.own.reset();
  return true;
}

void GradientStore::prepare() {
  stored_.resize(optimizer_.parameters().size());
  for (size_t i = 0; i < stored_.size(); ++i) {
    const int64_t versions = optimizer_.parameters()[i].exchanged ? ranks_.experts->size() : 1;
    largest_ = std::max(largest_, versions * static_cast<int64_t>(optimizer_.leaf(i).nbytes()));
  }
}

// Twice the largest gradient may be under way: an expert block makes its two together, of which one is half
// of the other.
void GradientStore::start_exchange(size_t index, const at::Tensor& gradient, int64_t versions) {
  int64_t bytes = static_cast<int64_t>(gradient.nbytes());
  for (const Exchange& one : exchanges_) bytes += static_cast<int64_t>(one.sent.nbytes());
  while (!exchanges_.empty() && bytes > 2 * largest_) {
    bytes -= static_cast<int64_t>(exchanges_.front().sent.nbytes());
    finish_exchange();
  }
  const Parameter& parameter = optimizer_.parameters()[index];
  Communicator& ranks = ranks_.gradients_of(parameter);
  const int64_t size = ranks.size(), own = parameter.value.numel();
  const KindScope kind(Kind::communication);
  Exchange started{index, gradient, at::empty({size * versions, own}, gradient.options())};
  const std::vector<int64_t> received(size, versions * own);
  if (optimizer_.divided()) {
    std::vector<int64_t> sent = optimizer_.parts(index).elements();
    for (int64_t& count : sent) count *= versions;
    started.transfer = ranks.exchange(gradient, sent, started.versions_RN, received);
  } else {
    started.transfer = ranks.gather(gradient, started.versions_RN, received);
  }
  exchanges_.push_back(std::move(started));
}

// The oldest.
void GradientStore::finish_exchange() {
  const at::NoGradGuard no_grad;
  Exchange done = std::move(exchanges_.front());
  exchanges_.pop_front();
  done.transfer->wait();
  done.sent.reset();
  add(done.index, done.versions_RN);
}

void GradientStore::finish_exchanges() {
  while (!exchanges_.empty()) finish_exchange();
}

void GradientStore::add(size_t index, const at::Tensor& rows_RN) {
  switch (home_) {
    case Home::device:
      return keep(optimizer_.parameters()[index], rows_RN);
    case Home::host:
      return to_host(optimizer_.parameters()[index], stored_[index], rows_RN);
    case Home::nvme:
      return to_file(index, stored_[index], rows_RN);
  }
}

void GradientStore::keep(Parameter& parameter, const at::Tensor& rows_RN) {
  add_rows(parameter.accumulated, rows_RN, parameter.value.sizes(), sum_type(parameter));
}

// The memory is kept between steps: on CUDA it is pinned, and allocating it takes longer than filling it.
void GradientStore::to_host(Parameter& parameter, Stored& stored, const at::Tensor& rows_RN) {
  const KindScope kind(Kind::gradients);
  const HomeScope outside(Home::host);
  const c10::ScalarType type = sum_type(parameter);
  const bool fresh = !parameter.accumulated.defined();
  if (fresh) {
    if (!stored.memory.defined() || stored.memory.scalar_type() != type) {
      stored.memory.reset();
      stored.memory = copies_.like(parameter.value, type);
    }
    parameter.accumulated = stored.memory;
    if (rows_RN.size(0) == 1) return copies_.start(rows_RN.view(parameter.value.sizes()), stored.memory);
  }
  add_in_order(parameter.accumulated.view(-1), on_host(rows_RN), fresh);
}

at::Tensor GradientStore::on_host(const at::Tensor& gradient) {
  if (!gradient.is_cuda()) return gradient;
  const at::Tensor there = copies_.passing(gradient, gradient.scalar_type());
  copies_.start(gradient, there);
  copies_.finish();
  return there;
}

// Whole rows at a time, so that their squares are added on the way, and whole sectors.
void GradientStore::to_file(size_t index, Stored& stored, const at::Tensor& rows_RN) {
  const Parameter& parameter = optimizer_.parameters()[index];
  const at::Tensor rows = on_host(rows_RN);
  const int64_t elements = rows.size(1);
  if (elements == 0) return;  // another rank's
  const c10::ScalarType type = sum_type(parameter);
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  if (stored.bytes < elements * size) {
    stored.bytes = elements * size;
    stored.offset = file_->reserve(stored.bytes, Kind::gradients);
  }
  const int64_t row = row_of(optimizer_.leaf(index)), unit = std::lcm(row, UnnamedFile::kAlign / size);
  const int64_t step = unit * std::max<int64_t>(1, file_->request_bytes() / (unit * size));
  file_->fit(std::min(step, elements) * size);
  const int64_t visits = (elements + step - 1) / step;
  stored.squares = {};
  const auto visit = [&](int64_t i) {
    const int64_t count = std::min(step, elements - i * step);
    return StateFile::Visit{
        {stored.offset + i * step * size, UnnamedFile::padded(count * size), stored.present, true}};
  };
  file_->run(device_.is_meta() ? std::min<int64_t>(visits, 1) : visits, visit,
             [&](int64_t i, const std::vector<at::Tensor>& bytes) {
               const at::Tensor part = rows.narrow(1, i * step, std::min(step, elements - i * step));
               const at::Tensor sum = bytes.front().narrow(0, 0, part.size(1) * size).view(type);
               if (micro_batches_ > 1) {
                 add_in_order(sum, part, !stored.present);
               } else {
                 sum.copy_(part[0]);
               }
               add_squares(sum, row, stored.squares);
             });
  stored.present = true;
  optimizer_.use_stored_gradient(index, StoredGradient{stored.offset, type});
}

// Whether ranks hold different gradients, so that norms are sums over them.
bool GradientStore::gradients_differ() const {
  return optimizer_.divided() || ranks_.experts->size() > 1 || ranks_.tensor->size() > 1;
}

// Whether this rank's gradient counts in such a sum: no lower rank holds the same.
bool GradientStore::counts(size_t index) const {
  return !gradients_differ() || ranks_.first_to_hold(optimizer_.parameters()[index], optimizer_.divided());
}

double GradientStore::sum_of_squares() {
  if (const at::Tensor there = squares_there(); there.defined()) return sum_of(there.cpu());
  double sum = 0;
  for (const double one : squares_of_each()) sum += one;
  return sum;
}

std::vector<double> GradientStore::squares_of_each() {
  finish_exchanges();
  copies_.finish();
  std::vector<ExactSum> each;
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) each.push_back(own_squares(i));
  if (gradients_differ()) add_over_ranks(*ranks_.of_stage, each);
  std::vector<double> values;
  for (const ExactSum& one : each) values.push_back(one.value());
  return values;
}

void GradientStore::add_from(int64_t other, Communicator& ranks, size_t index) {
  const at::NoGradGuard no_grad;
  finish_exchanges();
  copies_.finish();
  const at::Tensor gradient = optimizer_.parameters()[index].gradient();
  if (!gradient.defined() || gradient.numel() == 0) return;  // another rank's part
  const KindScope kind(Kind::communication);
  const at::Tensor theirs = at::empty_like(gradient);
  const auto sent = ranks.send(gradient, other), received = ranks.receive(theirs, other);
  sent->wait();
  received->wait();
  gradient.add_(theirs);
}

at::Tensor GradientStore::squares_there() {
  finish_exchanges();
  if (home_ != Home::device || !device_.is_cuda()) return {};
  std::vector<at::Tensor> squares;
  const std::vector<Parameter>& parameters = optimizer_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].gradient();
    if (gradient.defined() && counts(i)) squares.push_back(cuda_squared_norm(gradient));
  }
  const auto fp64 = at::TensorOptions(device_).dtype(at::kDouble);
  return squares.empty() ? at::zeros({1}, fp64) : at::stack(squares);
}

double GradientStore::sum_of(const at::Tensor& squares) const {
  const auto* const square = squares.const_data_ptr<double>();
  const double own = std::accumulate(square, square + squares.numel(), 0.0);
  if (!gradients_differ()) return own;
  double sum = 0;
  for (const double one : of_all_ranks(*ranks_.of_stage, own)) sum += one;
  return sum;
}

double GradientStore::squares_of(size_t index) {
  finish_exchanges();
  std::vector<ExactSum> one{own_squares(index)};
  if (gradients_differ()) add_over_ranks(*ranks_.of_stage, one);
  return one.front().value();
}

// Nothing where the gradient is no longer in memory, or another rank counts it.
ExactSum GradientStore::own_squares(size_t index) const {
  if (!counts(index)) return {};
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
  exchanges_.clear();  // waits
  // on the device nothing is copied, and a graph being captured must not wait for a stream
  if (home_ != Home::device) copies_.finish();
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) drop(i);
}

void GradientStore::drop(size_t index) {
  optimizer_.leaf(index).mutable_grad().reset();
  optimizer_.parameters()[index].accumulated.reset();
  optimizer_.use_stored_gradient(index, std::nullopt);
  if (index >= stored_.size()) return;
  stored_[index].present = false;
  stored_[index].own.reset();
  stored_[index].taken = 0;
  stored_[index].versions.reset();
}

}  // namespace moelab
