// An optimizer that ranks divide: what each keeps, and the whole that they make together.
#include <ATen/ATen.h>

#include <numeric>
#include <unordered_map>

#include "train/optim/optimizer.h"

namespace moelab {
namespace {

at::Tensor part_of_whole(const at::Tensor& whole, const std::vector<int64_t>& counts, int64_t rank) {
  const int64_t first = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  return whole.detach().reshape(-1).narrow(0, first, counts[rank]);
}

}  // namespace

// The master of the part is a tensor of its own, so that the whole one's memory is freed.
Parameter Optimizer::own_part(Parameter whole, Held& held) const {
  const int64_t index = static_cast<int64_t>(held_.size()) - 1, rank = ranks_.rank();
  const int64_t row = whole.value.dim() > 0 ? whole.value.size(-1) : 1;
  held.ranks = parts_of(rule_.cut(whole), row, ranks_.size(), index);
  held.first = held.ranks.first_element(rank);
  held.cut = held.ranks.cut;
  held.cut.shape.front() = held.ranks.rows(rank);
  Parameter part = rows_of(whole, held.ranks.cut, held.ranks.starts[rank], held.ranks.rows(rank));
  if (part.has_master_copy()) {
    const KindScope kind(Kind::master);
    part.master = part.master.clone();
  }
  return part;
}

// Each rank's elements of the master, which are those of the weight, then of the rule's tensors.
std::vector<std::vector<int64_t>> Optimizer::elements_of_ranks(size_t index) const {
  const Held& held = held_[index];
  std::vector<std::vector<int64_t>> elements(held.layout.size() + 1);
  elements.front() = held.ranks.elements();
  for (int64_t r = 0; r < ranks_.size(); ++r) {
    const Parameter part = rows_of(held.whole, held.ranks.cut, held.ranks.starts[r], held.ranks.rows(r));
    const std::vector<StateSlot> layout = rule_.layout(part);
    for (size_t k = 0; k < layout.size(); ++k) elements[k + 1].push_back(elements_of(layout[k]));
  }
  return elements;
}

std::unique_ptr<Transfer> Optimizer::gather_value(size_t index) {
  return ranks_.gather(parameters_[index].value, leaf(index).detach(), parts(index).elements());
}

at::Tensor Optimizer::of_all_ranks(const at::Tensor& own, const std::vector<int64_t>& counts,
                                   at::IntArrayRef shape) const {
  const HomeScope outside(Home::host);
  const at::Tensor whole = at::empty(shape, own.options());
  ranks_.gather(own.contiguous(), whole, counts)->wait();
  return whole;
}

at::Tensor Optimizer::weights(size_t index) const {
  const at::Tensor own = own_weights(index);
  return divided() ? of_all_ranks(own, parts(index).elements(), leaf(index).sizes()) : own;
}

void Optimizer::set_weights(size_t index, const at::Tensor& fp32) {
  if (!divided()) return set_own_weights(index, fp32);
  const at::Tensor own = part_of_whole(fp32, parts(index).elements(), ranks_.rank());
  set_own_weights(index, own.view(parameters_[index].value.sizes()));
}

std::vector<at::Tensor> Optimizer::whole_state(size_t index, bool weights) const {
  std::vector<at::Tensor> state = own_state(index, weights);
  if (!divided()) return state;
  const std::vector<std::vector<int64_t>> elements = elements_of_ranks(index);
  const std::vector<StateSlot> whole = rule_.layout(held_[index].whole);
  for (size_t k = 0; k < state.size(); ++k) {
    const at::IntArrayRef shape = k == 0 ? leaf(index).sizes() : at::IntArrayRef(whole[k - 1].shape);
    if (state[k].defined()) state[k] = of_all_ranks(state[k], elements[k], shape);
  }
  return state;
}

std::vector<NamedState> Optimizer::state(bool weights) const {
  std::vector<NamedState> named;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    const std::vector<at::Tensor> whole = whole_state(i, weights);
    if (whole[0].defined()) named.push_back({name + ".master", whole[0]});
    for (size_t k = 0; k < held_[i].layout.size(); ++k) {
      if (whole[k + 1].defined()) named.push_back({name + "." + held_[i].layout[k].suffix, whole[k + 1]});
    }
  }
  return named;
}

void Optimizer::set_state(const std::vector<NamedState>& named) {
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const NamedState& one : named) by_name[one.name] = one.tensor;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string prefix = parameters_[i].name + ".";
    const std::vector<StateSlot>& layout = held_[i].layout;
    std::vector<at::Tensor> given = {by_name[prefix + "master"]};
    for (const StateSlot& slot : layout) given.push_back(by_name[prefix + slot.suffix]);
    const auto elements = divided() ? elements_of_ranks(i) : std::vector<std::vector<int64_t>>();
    for (size_t k = 0; k < elements.size(); ++k) {
      const at::IntArrayRef shape =
          k == 0 ? parameters_[i].value.sizes() : at::IntArrayRef(layout[k - 1].shape);
      if (given[k].defined()) given[k] = part_of_whole(given[k], elements[k], ranks_.rank()).view(shape);
    }
    set_own_state(i, given);
  }
}

}  // namespace moelab
