// The optimizer's state in a file: each part of a parameter has a record of its master and its state.
#include <ATen/ATen.h>

#include <algorithm>

#include "train/optim/optimizer.h"

namespace moelab {
namespace {

constexpr int64_t kSlotAlign = 64;  // a cache line

int64_t slot_bytes(const StateSlot& slot) {
  return (bytes_of(slot) + kSlotAlign - 1) / kSlotAlign * kSlotAlign;
}

int64_t record_bytes(const std::vector<StateSlot>& slots) {
  int64_t bytes = 0;
  for (const StateSlot& slot : slots) bytes += slot_bytes(slot);
  return bytes;
}

// The bytes from `offset` on, viewed as a tensor.
at::Tensor typed(const at::Tensor& bytes, int64_t offset, at::IntArrayRef shape, c10::ScalarType type) {
  const int64_t length = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(type));
  return bytes.narrow(0, offset, length).view(type).view(shape);
}

at::Tensor rows_of_tensor(const at::Tensor& whole, const Cut& cut, int64_t row, int64_t rows) {
  return whole.detach().view(cut.shape).narrow(0, row, rows);
}

}  // namespace

Parameter Optimizer::rows_of(const Parameter& p, const Cut& cut, int64_t row, int64_t rows) {
  Parameter part = p;
  part.accumulated.reset();
  part.value = rows_of_tensor(p.value, cut, row, rows);
  if (p.master.defined())
    part.master = p.master.is_same(p.value) ? part.value : rows_of_tensor(p.master, cut, row, rows);
  if (p.heads > 0 && cut.align == p.head_rows)
    part.heads = std::clamp<int64_t>(p.heads - row / p.head_rows, 0, rows / p.head_rows);
  return part;
}

Parameter Optimizer::rows_of(size_t index, int64_t row, int64_t rows) const {
  return rows_of(parameters_[index], held_[index].cut, row, rows);
}

std::vector<StateSlot> Optimizer::record_of(size_t index, const Parameter& part) const {
  std::vector<StateSlot> slots;
  if (held_[index].master_in_file)
    slots.push_back({"master", part.value.sizes().vec(), ElementType::fp32, Kind::master});
  for (StateSlot& slot : rule_.layout(part)) slots.push_back(std::move(slot));
  return slots;
}

// Chooses parts so that a record and its gradient together fill about one request.
void Optimizer::plan_parts(size_t index) {
  Held& held = held_[index];
  const Parameter& p = parameters_[index];
  held.master_in_file = in_file() && p.has_master_copy();
  if (p.value.numel() == 0) return;  // another rank's
  const int64_t rows = held.rows(), unit = std::min(held.cut.align, rows);
  const auto bound = [&](int64_t count) {  // largest record of `count` rows
    Parameter part = rows_of(index, 0, count);
    part.heads = 0;  // a block for every row
    return in_file() ? record_bytes(record_of(index, part)) : 0;
  };
  const auto gradient = [&](int64_t count) {
    return p.value.numel() / rows * count * static_cast<int64_t>(sizeof(float));
  };
  const double share =
      static_cast<double>(file_->request_bytes()) / static_cast<double>(bound(rows) + gradient(rows));
  const auto units = static_cast<int64_t>(share * static_cast<double>(rows) / static_cast<double>(unit));
  held.part_rows = std::clamp<int64_t>(units * unit, unit, rows);
  if (in_file()) {
    held.record_bytes = UnnamedFile::padded(bound(held.part_rows));
    const int64_t last = rows - (held.parts() - 1) * held.part_rows;
    held.offset = file_->reserve((held.parts() - 1) * held.record_bytes + UnnamedFile::padded(bound(last)),
                                 Kind::optimizer);
  }
  file_->fit(held.record_bytes + UnnamedFile::padded(gradient(held.part_rows)) + UnnamedFile::kAlign);
}

void Optimizer::put_master(size_t index) {
  const at::Tensor master = std::exchange(parameters_[index].master, {});
  std::vector<at::Tensor> whole(held_[index].layout.size() + 1);
  whole[0] = master;
  exchange(index, whole, true);
}

Optimizer::Part Optimizer::part_of(size_t index, int64_t number, const at::Tensor& record) const {
  const Held& held = held_[index];
  const int64_t row = number * held.part_rows, rows = std::min(held.part_rows, held.rows() - row);
  Part part{rows_of(index, row, rows), {}, parameters_[index].value.numel() / held.rows() * row};
  if (!record.defined()) {
    const std::vector<StateSlot> before = rule_.layout(rows_of(index, 0, row)),
                                 here = rule_.layout(part.parameter);
    for (size_t k = 0; k < here.size(); ++k) {
      const int64_t first = row == 0 ? 0 : elements_of(before[k]);
      part.state.push_back(held.state[k].view(-1).narrow(0, first, elements_of(here[k])).view(here[k].shape));
    }
    return part;
  }
  int64_t offset = 0;
  for (const StateSlot& slot : record_of(index, part.parameter)) {
    at::Tensor tensor = typed(record, offset, slot.shape, scalar_type(slot.type));
    offset += slot_bytes(slot);
    if (held.master_in_file && !part.parameter.master.defined()) {
      part.parameter.master = std::move(tensor);
    } else {
      part.state.push_back(std::move(tensor));
    }
  }
  return part;
}

// On meta the first part stands for all: none is larger.
int64_t Optimizer::visited_parts(size_t index) const {
  return std::min<int64_t>(held_[index].parts(), device_.is_meta() ? 1 : held_[index].parts());
}

RecordPart Optimizer::record_part(size_t index, int64_t number, bool change) const {
  const Held& held = held_[index];
  const int64_t row = number * held.part_rows, rows = std::min(held.part_rows, held.rows() - row);
  const int64_t bytes = UnnamedFile::padded(record_bytes(record_of(index, rows_of(index, row, rows))));
  return {held.offset + number * held.record_bytes, bytes, true, change};
}

void Optimizer::visit_records(size_t index, bool change, const PartWork& work) const {
  const auto visit = [&](int64_t i) { return StateFile::Visit{record_part(index, i, change)}; };
  file_->run(visited_parts(index), visit, [&](int64_t i, const std::vector<at::Tensor>& bytes) {
    Part part = part_of(index, i, bytes.front());
    work(part);
  });
}

void Optimizer::exchange(size_t index, const std::vector<at::Tensor>& whole, bool into_file) const {
  if (std::none_of(whole.begin(), whole.end(), [](const at::Tensor& t) { return t.defined(); })) return;
  std::vector<int64_t> done(whole.size(), 0);
  visit_records(index, into_file, [&](Part& part) {
    std::vector<at::Tensor> mine = {held_[index].master_in_file ? part.parameter.master : at::Tensor()};
    mine.insert(mine.end(), part.state.begin(), part.state.end());
    for (size_t k = 0; k < mine.size(); ++k) {
      if (!whole[k].defined() || !mine[k].defined()) continue;
      const at::Tensor there = whole[k].view(-1).narrow(0, done[k], mine[k].numel()).view(mine[k].sizes());
      into_file ? mine[k].copy_(there) : there.copy_(mine[k]);
      done[k] += mine[k].numel();
    }
  });
}

std::vector<at::Tensor> Optimizer::tensors_of(size_t index, bool weights) const {
  const Held& held = held_[index];
  const Parameter& p = parameters_[index];
  const HomeScope outside(Home::host);
  const auto options = at::TensorOptions().device(device_.is_meta() ? c10::kMeta : c10::kCPU);
  std::vector<at::Tensor> whole(1);
  if (weights && held.master_in_file) whole[0] = at::empty(p.value.sizes(), options.dtype(at::kFloat));
  if (weights && p.has_master_copy()) whole[0] = p.master;
  for (size_t k = 0; k < held.layout.size(); ++k) {
    const StateSlot& slot = held.layout[k];
    whole.emplace_back();
    if (!weights && slot.kind == Kind::master) continue;
    whole.back() = in_file() ? at::empty(slot.shape, options.dtype(scalar_type(slot.type))) : held.state[k];
  }
  if (in_file()) exchange(index, whole, false);
  return whole;
}

// The bytes of a part's stored gradient, extended to whole sectors.
RecordPart Optimizer::gradient_part(const Step& step) const {
  const Held& held = held_[step.index];
  const int64_t size = static_cast<int64_t>(c10::elementSize(held.gradient->type)),
                row = step.part * held.part_rows, rows = std::min(held.part_rows, held.rows() - row),
                width = parameters_[step.index].value.numel() / held.rows(),
                begin = held.gradient->offset + row * width * size;
  const int64_t first = begin / UnnamedFile::kAlign * UnnamedFile::kAlign;
  return {first, UnnamedFile::padded(begin + rows * width * size - first), true, false};
}

at::Tensor Optimizer::gradient_of(const Step& step, const Part& part, const at::Tensor& bytes) const {
  const Held& held = held_[step.index];
  const at::Tensor& value = part.parameter.value;
  if (!held.gradient) {
    return parameters_[step.index]
        .gradient()
        .view(-1)
        .narrow(0, part.element, value.numel())
        .view(value.sizes());
  }
  const int64_t begin =
      held.gradient->offset + part.element * static_cast<int64_t>(c10::elementSize(held.gradient->type));
  return typed(bytes, begin % UnnamedFile::kAlign, value.sizes(), held.gradient->type);
}

void Optimizer::step_parts(const std::vector<size_t>& indices, double lr, double gradient_scale) {
  std::vector<Step> steps;
  for (const size_t i : indices) {
    if (!has_gradient(i)) continue;
    const OptimizerStep numbers = next_numbers(i, lr, gradient_scale);
    for (int64_t part = 0; part < visited_parts(i); ++part) steps.push_back({i, part, numbers});
  }
  const auto visit = [&](int64_t i) {
    const Step& step = steps[static_cast<size_t>(i)];
    StateFile::Visit parts;
    if (in_file()) parts.push_back(record_part(step.index, step.part, true));
    if (held_[step.index].gradient) parts.push_back(gradient_part(step));
    return parts;
  };
  file_->run(static_cast<int64_t>(steps.size()), visit, [&](int64_t i, const std::vector<at::Tensor>& bytes) {
    Step& step = steps[static_cast<size_t>(i)];
    const Part part = part_of(step.index, step.part, in_file() ? bytes.front() : at::Tensor());
    step.numbers.first_element += part.element;
    run_rule(part.parameter, gradient_of(step, part, bytes.back()), part.state, step.numbers);
  });
}

}  // namespace moelab
