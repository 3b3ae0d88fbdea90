#include "train/activations/host_store.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstring>

#include "kernels/memory/ledger.h"
#include "train/activations/stack_region.h"

namespace moelab {

class HostSlab {
 public:
  at::Tensor take(const at::Tensor& like) {
    const HomeScope outside(Home::host);
    const auto bytes = static_cast<int64_t>(like.nbytes());
    const auto options = like.options().dtype(at::kByte);
    if (region_.empty() && capacity() < region_.highest()) {
      slab_.reset();  // before the larger one is made
      slab_ = at::empty({region_.highest()}, options);
    }
    const bool fits = region_.end() + bytes <= capacity();
    const at::Tensor place = fits ? slab_.narrow(0, region_.end(), bytes) : at::empty({bytes}, options);
    region_.take(bytes);
    return place;
  }
  void give_back() { region_.give_back(); }

 private:
  int64_t capacity() const { return slab_.defined() ? slab_.numel() : 0; }

  StackRegion region_{64};  // a cache line, as the allocator aligns
  at::Tensor slab_;         // bytes
};

namespace {

constexpr int64_t kCopyGrain = 1 << 18;  // bytes a task

void copy_bytes(void* to, const void* from, int64_t bytes) {
  at::parallel_for(0, bytes, kCopyGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
  });
}

class HostTensor : public StoredTensor {
 public:
  HostTensor(std::shared_ptr<HostSlab> slab, const at::Tensor& dense)
      : slab_(std::move(slab)), bytes_(slab_->take(dense)) {
    if (dense.is_meta()) return;
    copy_bytes(bytes_.mutable_data_ptr(), dense.const_data_ptr(), bytes_.numel());
  }
  ~HostTensor() override {
    bytes_.reset();
    slab_->give_back();
  }
  void read(const at::Tensor& to) const override {
    if (to.is_meta()) return;
    copy_bytes(to.mutable_data_ptr(), bytes_.const_data_ptr(), bytes_.numel());
  }

 private:
  std::shared_ptr<HostSlab> slab_;
  at::Tensor bytes_;
};

}  // namespace

HostStore::HostStore() : slab_(std::make_shared<HostSlab>()) {}

std::unique_ptr<StoredTensor> HostStore::store(const at::Tensor& dense) {
  TORCH_CHECK(dense.is_cpu() || dense.is_meta(), "activations on the host: tensors of ", dense.device());
  return std::make_unique<HostTensor>(slab_, dense);
}

}  // namespace moelab
