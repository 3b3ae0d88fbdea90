#include "train/activations/saved_tensors.h"

#include <ATen/ATen.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "kernels/memory/ledger.h"

namespace moelab {
namespace {

constexpr size_t kSmallestStored = 1024;  // bytes; smaller tensors are not worth the bookkeeping

thread_local SavedTensors* current = nullptr;  // the one whose scope is open on this thread

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

// `tensor` itself, or a copy without gaps. A view that repeats elements (expand) does not get here if it is
// larger than its storage.
at::Tensor without_gaps(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor.detach() : tensor.detach().contiguous();
}

}  // namespace

SavedTensors::Seen::Seen(const at::Tensor& tensor)
    : storage(tensor.storage().getWeakStorageImpl()),
      offset(tensor.storage_offset()),
      version(tensor._version()),
      type(tensor.scalar_type()),
      sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()) {
  if (!tensor.is_non_overlapping_and_dense()) return;
  sizes = {tensor.numel()};
  strides = {1};
}

bool SavedTensors::Seen::is_same(const Seen& other) const {
  return offset == other.offset && version == other.version && type == other.type && sizes == other.sizes &&
         strides == other.strides;
}

struct SavedTensors::Recomputed {
  Recomputed(const at::Tensor& x, TensorFunction f, const at::Tensor& y)
      : x(x, false), f(std::move(f)), y(y) {}

  at::Tensor make() const {
    const at::NoGradGuard no_grad;
    return f(x.unpack().detach());
  }

  torch::autograd::SavedVariable x;
  TensorFunction f;
  Seen y;  // f(x) as computed in forward
};

// What autograd holds in place of one saved tensor. Backward may run on another thread than forward, so this
// holds everything that unpacking needs.
class SavedTensorHooks : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedTensorHooks(SavedTensors& policy) : policy_(policy) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    recomputed_ = policy_.recomputed(tensor);
    if (recomputed_) {
      kind_ = kind_of(tensor);
      sizes_ = tensor.sizes().vec();
      return;
    }
    if (policy_.leaves_alone(tensor)) {
      // detached, because an output would keep its own graph alive
      kept_ = tensor.detach();
      version_ = tensor._version();
      return;
    }
    options_ = tensor.options();
    kind_ = kind_of(tensor);
    pack(tensor);
  }

  at::Tensor call_unpack_hook() override {
    if (kept_.defined()) {
      TORCH_CHECK(kept_._version() == version_, "a tensor that autograd saved was changed in place");
      return kept_;
    }
    KindScope kind(kind_);
    if (recomputed_) return recomputed_->make().view(sizes_);
    if (const at::Tensor bytes = stored_->fetched(); bytes.defined())
      return bytes.view(options_.dtype().toScalarType()).as_strided(sizes_, strides_);
    at::Tensor tensor = at::empty_strided(sizes_, strides_, options_);
    stored_->read(tensor);
    return tensor;
  }

 private:
  void pack(const at::Tensor& tensor) {
    KindScope kind(kind_);
    SavedTensors::Seen entry(tensor);
    auto& entries = policy_.seen_[storage_of(tensor)];
    for (const auto& seen : entries) {
      if (seen.is_same(entry)) stored_ = seen.stored.lock();
      if (stored_) break;
    }
    sizes_ = tensor.sizes().vec();
    if (tensor.is_non_overlapping_and_dense()) {
      strides_ = tensor.strides().vec();
    } else {
      const auto strides = c10::contiguous_strides(sizes_);
      strides_.assign(strides.begin(), strides.end());
    }
    if (stored_) return;
    stored_ = policy_.store(without_gaps(tensor));
    entry.stored = stored_;
    entries.push_back(std::move(entry));
  }

  SavedTensors& policy_;  // used by the pack hook only
  at::Tensor kept_;
  int64_t version_ = 0;
  std::shared_ptr<const SavedTensors::Recomputed> recomputed_;
  std::shared_ptr<StoredTensor> stored_;
  std::vector<int64_t> sizes_, strides_;
  at::TensorOptions options_;
  Kind kind_ = Kind::activations;
};

namespace {

// The only way from C++ to autograd's default hooks: SavedVariable asks the engine for them.
struct HookedEngine : torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current && current->acts() ? std::make_unique<SavedTensorHooks>(*current) : nullptr;
  }
};

torch::autograd::Engine& hooked_engine() {
  static auto* engine = new HookedEngine;  // never destroyed, as its threads may outlive main
  return *engine;
}

// Installed at program start: LibTorch (2.11) starts the device threads only for the first engine that runs,
// so there must be no other.
[[maybe_unused]] const bool installed = (torch::autograd::set_default_engine_stub(hooked_engine), true);

}  // namespace

SavedTensors::SavedTensors(std::unique_ptr<TensorStore> store, const std::vector<Parameter>& parameters)
    : store_(std::move(store)) {
  for (const Parameter& parameter : parameters) parameters_.insert(storage_of(parameter.value));
}

SavedTensors::Scope::Scope(SavedTensors& saved) : saved_(saved), previous_(current) {
  saved.stored_bytes_ = saved.stored_tensors_ = 0;
  current = &saved;
}

SavedTensors::Scope::~Scope() {
  saved_.seen_.clear();
  saved_.recomputed_.clear();
  current = previous_;
}

bool SavedTensors::leaves_alone(const at::Tensor& tensor) const {
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  return !store_ || !tensor.is_floating_point() || bytes < kSmallestStored ||
         bytes > tensor.storage().nbytes() || parameters_.contains(storage_of(tensor));
}

at::Tensor SavedTensors::recompute_for_readers(const at::Tensor& x, const TensorFunction& f) {
  const at::Tensor y = f(x);
  if (!current || !at::GradMode::is_enabled()) return y;
  TORCH_CHECK(y.is_contiguous(), "a tensor to be recomputed must be contiguous");
  current->recomputed_[storage_of(y)] = std::make_shared<const Recomputed>(x, f, y);
  return y;
}

std::shared_ptr<const SavedTensors::Recomputed> SavedTensors::recomputed(const at::Tensor& tensor) const {
  const auto found = recomputed_.find(storage_of(tensor));
  const bool same =
      found != recomputed_.end() && tensor.is_contiguous() && found->second->y.is_same(Seen(tensor));
  return same ? found->second : nullptr;
}

void SavedTensors::begin_block(bool last) {
  if (current && current->store_) current->store_->begin_block(last);
}

std::shared_ptr<StoredTensor> SavedTensors::store(const at::Tensor& dense) {
  stored_bytes_ += static_cast<int64_t>(dense.nbytes());
  ++stored_tensors_;
  return store_->store(dense);
}

}  // namespace moelab
