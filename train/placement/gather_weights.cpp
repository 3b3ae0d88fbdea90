#include "train/placement/gather_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/formats/packed_blocks.h"
#include "moe/layer_name.h"
#include "train/placement/divided_buffer.h"
#include "train/placement/tensor_storage.h"

namespace moelab {
namespace {

std::optional<int64_t> block_of(std::string_view name) {
  const std::optional<int64_t> layer = layer_in_name(name);
  TORCH_CHECK(layer || !name.starts_with("blocks."),
              "a block's parameter without a number: ", std::string(name));
  return layer;
}

// The layer whose forward pass reads it first, or reads it next: the final norm comes after the last block.
int64_t first_use(const std::string& name, int64_t layers) {
  if (name == "embedding") return -1;
  return block_of(name).value_or(name == "head" ? layers : layers - 1);
}

bool is_coded(const Parameter& p) { return p.value.scalar_type() != at::kFloat && block_of(p.name); }

int64_t coded_bytes(int64_t elements) { return elements + 4 * quant_blocks(elements); }

void* data_of(const at::Tensor& tensor) {
  return tensor.is_meta() ? nullptr : tensor.storage().mutable_data();
}

}  // namespace

void round_as_stored(const Parameter& parameter, const PrecisionSettings& precision) {
  const at::NoGradGuard no_grad;
  const at::Tensor value = parameter.value.detach();
  if (parameter.has_master_copy()) value.copy_(parameter.master);
  const std::optional<BlockCode> code = weight_code(precision);
  if (!code || !is_coded(parameter)) return;
  unpack_blocks(pack_blocks(value, *code, kQuantBlock), *code, kQuantBlock, value);
}

GatheredWeights::GatheredWeights(const Settings& settings, c10::Device device, Communicator& ranks,
                                 Communicator& expert_ranks)
    : copies_(device),
      code_(weight_code(settings.precision)),
      home_(settings.placement.parameters),
      moves_masters_(settings.placement.parameters != Home::device &&
                     settings.placement.optimizer == Home::device),
      keeps_gathered_(ranks.size() > 1 && !settings.placement.reshard_after_forward),
      ranks_(ranks),
      expert_ranks_(expert_ranks),
      blocks_(static_cast<size_t>(settings.model.layers) + 2),
      tied_(settings.model.tie_embeddings) {
  if (home_ != Home::device || ranks.size() > 1)
    offload_pool_ = make_offload_pool(home_, settings.placement, copies_);
}

GatheredWeights::~GatheredWeights() { release_all(); }

int64_t GatheredWeights::layer_of(OuterWeight weight) const {
  const auto layers = static_cast<int64_t>(blocks_.size()) - 2;
  return weight == OuterWeight::head || tied_ ? layers : layers + 1;
}

std::optional<int64_t> GatheredWeights::layer_of(const std::string& name) const {
  if (ranks_.size() > 1 && name == "embedding") return layer_of(OuterWeight::embedding);
  if (ranks_.size() > 1 && name == "head") return layer_of(OuterWeight::head);
  return block_of(name);
}

void GatheredWeights::adopt(const Parameter& parameter) { adopt(parameter, parameter.master, nullptr); }

void GatheredWeights::adopt(const Parameter& parameter, const Parameter& stepped, const Parts& parts) {
  adopt(parameter, stepped.master, &parts);
}

void GatheredWeights::adopt(const Parameter& parameter, const at::Tensor& master, const Parts* parts) {
  const at::NoGradGuard no_grad;
  Weight& weight = weights_.emplace_back();
  const std::optional<int64_t> layer = layer_of(parameter.name);
  const bool coded = code_ && is_coded(parameter);
  weight.first_use = first_use(parameter.name, static_cast<int64_t>(blocks_.size()) - 2);
  weight.bytes = weight.held_bytes =
      coded ? coded_bytes(parameter.value.numel()) : static_cast<int64_t>(parameter.value.nbytes());
  Communicator& ranks = ranks_of(parameter);
  const bool stays = home_ == Home::device && ranks.size() == 1;
  if (!layer || (!coded && stays)) return;
  weight.value = parameter.value;
  weight.kind = kind_of(parameter.value);
  weight.coded = coded;
  weight.written_whole = coded || parameter.has_master_copy();
  if (!stays) weight.home = make_home(weight, ranks, parts);
  if (moves_masters_ && parameter.has_master_copy()) {
    weight.master = master;
    weight.master_home = offload_pool_->take(static_cast<int64_t>(master.nbytes()), Kind::master);
  }
  take_home(weight);
  drop_memory(weight.value);
  if (weight.master_home) drop_memory(weight.master);
  blocks_.at(static_cast<size_t>(*layer)).weights.push_back(weights_.size() - 1);
}

// Codes are cut evenly: their blocks don't end where rows do.
std::unique_ptr<OffloadBuffer> GatheredWeights::make_home(Weight& weight, Communicator& ranks,
                                                          const Parts* parts) {
  const int64_t N = ranks.size();
  if (N == 1) return offload_pool_->take(weight.bytes, weight.kind);
  weight.divided = true;
  std::vector<int64_t> bytes;
  for (int64_t r = 0; r < N; ++r) {
    const int64_t even = (r + 1) * weight.bytes / N - r * weight.bytes / N;
    bytes.push_back(weight.coded ? even : parts->elements()[r] * weight.value.element_size());
  }
  weight.held_bytes = bytes[ranks.rank()];
  auto kept = weight.held_bytes > 0 ? offload_pool_->take(weight.held_bytes, weight.kind) : nullptr;
  return std::make_unique<DividedBuffer>(std::move(kept), std::move(bytes), ranks, copies_.device());
}

// Writes the current `value` and `master` to their home.
void GatheredWeights::take_home(Weight& weight) {
  if (weight.coded) {
    weight.payload.reset();  // freed before the new one is made
    const KindScope kind(weight.kind);
    weight.payload = pack_blocks(weight.value.detach(), *code_, kQuantBlock);
  }
  const WaitClock::Scope wait(waits_);
  copies_.follow();
  if (weight.home) weight.home->write(data_of(weight.coded ? weight.payload : weight.value));
  if (weight.master_home) weight.master_home->write(data_of(weight.master));
  copies_.join();
  if (weight.home) weight.payload.reset();
}

at::Tensor GatheredWeights::make_payload(const Weight& weight) const {
  const KindScope kind(weight.kind);
  return at::empty({weight.bytes}, at::TensorOptions().dtype(at::kByte).device(copies_.device()));
}

void GatheredWeights::make_room(Weight& weight) {
  if (weight.coded) {
    weight.payload = make_payload(weight);
  } else {
    make_memory(weight.value, weight.kind);
  }
}

void GatheredWeights::fetch(int64_t layer) {
  if (!offload_pool_ || layer < 0) return;
  Block& block = blocks_.at(static_cast<size_t>(layer));
  if (block.gathered || block.fetching || block.weights.empty()) return;
  std::vector<std::pair<OffloadBuffer*, void*>> reads;
  for (const size_t i : block.weights) {
    Weight& weight = weights_[i];
    if (!weight.home) continue;
    make_room(weight);
    reads.emplace_back(weight.home.get(), data_of(weight.coded ? weight.payload : weight.value));
  }
  copies_.follow();  // wait for the previous user of the memory
  const auto read_all = [this, reads = std::move(reads)] {
    Transfers coming;
    copies_.in_turn([&] {
      for (const auto& [from, to] : reads) {
        if (auto others = from->start_read(to)) coming.push_back(std::move(others));
      }
    });
    return coming;
  };
  // NCCL wants all calls of a rank in the order that they have on the others, so that none may come from a
  // thread.
  const bool in_order = ranks_.size() > 1 && copies_.device().is_cuda();
  block.fetching = std::async(
      copies_.device().is_meta() || in_order ? std::launch::deferred : std::launch::async, read_all);
  if (!in_order) return;
  const WaitClock::Scope wait(waits_);
  block.fetching->wait();
}

// Returns what is still to come from other ranks.
GatheredWeights::Transfers GatheredWeights::finish_fetching(Block& block) {
  auto fetching = std::exchange(block.fetching, std::nullopt);
  if (!fetching) return {};
  const WaitClock::Scope wait(waits_);
  return fetching->get();
}

void GatheredWeights::gather(int64_t layer) {
  Block& block = blocks_.at(static_cast<size_t>(layer));
  if (block.gathered || block.weights.empty()) return;
  fetch(layer);
  for (const auto& coming : finish_fetching(block)) coming->wait();
  copies_.join();
  for (const size_t i : block.weights) {
    Weight& weight = weights_[i];
    if (!weight.coded) continue;
    make_memory(weight.value, weight.kind);
    // unpacks through another tensor over the same memory: `value` must keep its version, which autograd
    // checks
    unpack_blocks(weight.payload, *code_, kQuantBlock, weight.value.variable_data());
    if (weight.home) weight.payload.reset();
  }
  block.gathered = true;
}

void GatheredWeights::release(int64_t layer) {
  Block& block = blocks_.at(static_cast<size_t>(layer));
  if (!block.gathered) return;
  for (const size_t i : block.weights) drop_memory(weights_[i].value);
  block.gathered = false;
}

void GatheredWeights::arrive(int64_t layer) {
  const auto needed = [&](const Coming& one) { return one.first_use <= layer; };
  while (std::any_of(coming_.begin(), coming_.end(), needed)) {
    coming_.front().transfer->wait();
    coming_.pop_front();
  }
}

void GatheredWeights::release_all() {
  for (Block& block : blocks_) {
    block.gathered = false;
    block.fetching.reset();  // waits
    copies_.join();
    for (const size_t i : block.weights) {
      Weight& weight = weights_[i];
      if (has_memory(weight.value)) drop_memory(weight.value);
      if (weight.master_home && has_memory(weight.master)) drop_memory(weight.master);
      if (weight.home) weight.payload.reset();
    }
  }
}

// Brings the weight and master to the device for its lifetime.
class GatheredWeights::Visit {
 public:
  Visit(Weight& weight, CopyStream& copies, WaitClock& waits) : weight_(weight) {
    bring_master_ = weight.master_home != nullptr;
    bring_value_ = weight.value.defined() && !has_memory(weight.value);
    if (bring_master_) make_memory(weight.master, Kind::master);
    if (bring_value_) make_memory(weight.value, weight.kind);
    const WaitClock::Scope wait(waits);
    copies.follow();
    if (bring_master_) weight.master_home->read(data_of(weight.master));
    if (bring_value_ && !weight.written_whole) weight.home->read_own(data_of(weight.value));
    copies.join();
  }
  ~Visit() {
    if (bring_master_) drop_memory(weight_.master);
    if (bring_value_) drop_memory(weight_.value);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Weight& weight_;
  bool bring_master_ = false, bring_value_ = false;
};

void GatheredWeights::change(size_t index, const std::function<void()>& step) {
  Weight& weight = weights_.at(index);
  if (!weight.value.defined()) return step();
  const Visit visit(weight, copies_, waits_);
  step();
  take_home(weight);
}

at::Tensor GatheredWeights::read(size_t index, const std::function<at::Tensor()>& weights) {
  if (!weights_.at(index).home) return weights();
  const Visit visit(weights_[index], copies_, waits_);
  const HomeScope outside(Home::host);
  const at::Tensor there = weights();
  return there.is_cuda() ? there.cpu() : there.clone();
}

int64_t GatheredWeights::held_bytes(size_t index) const { return weights_.at(index).held_bytes; }

}  // namespace moelab
