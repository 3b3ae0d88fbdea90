// What each rank keeps of an optimizer that they divide, and its state by name.
#include <ATen/ATen.h>

#include <unordered_map>

#include "train/optim/optimizer.h"

namespace moelab {

// The master of the part is a tensor of its own, so that the whole one's memory is freed.
// NOLINTNEXTLINE(performance-unnecessary-value-param): `whole` is the last that holds it
Parameter Optimizer::own_part(Parameter whole, Held& held) const {
  const Communicator& ranks = ranks_of(whole);
  const int64_t index = static_cast<int64_t>(held_.size()) - 1, rank = ranks.rank();
  const int64_t row = whole.value.dim() > 0 ? whole.value.size(-1) : 1;
  held.ranks = parts_of(rule_.cut(whole), row, ranks.size(), index);
  held.first += held.ranks.first_element(rank);
  held.cut = held.ranks.cut;
  held.cut.shape.front() = held.ranks.rows(rank);
  Parameter part = rows_of(whole, held.ranks.cut, held.ranks.starts[rank], held.ranks.rows(rank));
  if (part.has_master_copy()) {
    const KindScope kind(Kind::master);
    part.master = part.master.clone();
  }
  return part;
}

std::optional<TensorPart> Optimizer::part(size_t index) const {
  const Held& held = held_.at(index);
  if (const auto& of = held.whole.part) return TensorPart{of->shape, held.first, of->slice};
  if (!divided()) return std::nullopt;
  return TensorPart{leaf(index).sizes().vec(), held.first};
}

// The part that each tensor of tensors_of() is. The rule's tensors may have other shapes than the weight.
std::vector<std::optional<TensorPart>> Optimizer::parts_of_tensors(size_t index) const {
  const Held& held = held_[index];
  std::vector<std::optional<TensorPart>> parts = {part(index)};
  if (!parts.front()) return std::vector<std::optional<TensorPart>>(held.layout.size() + 1);
  const Parameter& whole = held.whole;
  int64_t shares = 1, share = 0;  // of the experts
  if (whole.exchanged) {
    shares = whole.part->shape.front() / whole.value.size(0);
    share = whole.part->first / whole.value.numel();
  }
  for (StateSlot& slot : rule_.layout(whole)) {
    const int64_t first = share * elements_of(slot);
    if (whole.sliced()) {  // a rule of sliced weights keeps a number for each of their elements
      parts.push_back(TensorPart{whole.part->shape, first, whole.part->slice});
      continue;
    }
    if (shares > 1) slot.shape.front() *= shares;
    parts.push_back(TensorPart{slot.shape, first});
  }
  for (int64_t r = 0; divided() && r < ranks_of(held.whole).rank(); ++r) {
    const Parameter before = rows_of(held.whole, held.ranks.cut, held.ranks.starts[r], held.ranks.rows(r));
    const std::vector<StateSlot> layout = rule_.layout(before);
    for (size_t k = 0; k < layout.size(); ++k) parts[k + 1]->first += elements_of(layout[k]);
  }
  return parts;
}

std::unique_ptr<Transfer> Optimizer::gather_value(size_t index) {
  return ranks_of(held_[index].whole)
      .gather(parameters_[index].value, leaf(index).detach(), parts(index).elements());
}

std::vector<NamedState> Optimizer::state(bool weights) const {
  std::vector<NamedState> named;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    const std::vector<at::Tensor> tensors = tensors_of(i, weights);
    const std::vector<std::optional<TensorPart>> parts = parts_of_tensors(i);
    for (size_t k = 0; k < tensors.size(); ++k) {
      const std::string suffix = k == 0 ? "master" : held_[i].layout[k - 1].suffix;
      if (tensors[k].defined()) named.push_back({name + "." + suffix, tensors[k], parts[k], i});
    }
  }
  return named;
}

void Optimizer::set_state(const std::vector<NamedState>& named) {
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const NamedState& one : named) by_name[one.name] = one.tensor;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string prefix = parameters_[i].name + ".";
    std::vector<at::Tensor> given = {by_name[prefix + "master"]};
    for (const StateSlot& slot : held_[i].layout) given.push_back(by_name[prefix + slot.suffix]);
    set_tensors_of(i, given);
  }
}

}  // namespace moelab
