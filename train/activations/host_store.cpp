#include "train/activations/host_store.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/memory/copy_stream.h"
#include "kernels/memory/host_memory.h"
#include "train/activations/fetch_ahead.h"
#include "train/activations/stack_region.h"

namespace moelab {

class HostSlab : public FetchAhead {
 public:
  HostSlab(c10::Device device, bool ahead) : FetchAhead(ahead), sends_(device), fetches_(device) {}

  at::Tensor take(int64_t bytes) {
    if (region_.empty() && capacity() < region_.highest()) {
      slab_.reset();  // freed before the larger one is allocated
      slab_ = host_memory(region_.highest(), device());
    }
    const bool fits = region_.end() + bytes <= capacity();
    const at::Tensor place = fits ? slab_.narrow(0, region_.end(), bytes) : host_memory(bytes, device());
    region_.take(bytes);
    return place;
  }
  void give_back() { region_.give_back(); }

  // A stream for each direction: the bus carries both at once, and backward's first fetch need not wait for
  // all that forward has sent.
  CopyStream& sends() { return sends_; }
  CopyStream& fetches() { return fetches_; }
  c10::Device device() const { return sends_.device(); }

 private:
  int64_t capacity() const { return slab_.defined() ? slab_.numel() : 0; }

  CopyStream sends_, fetches_;
  StackRegion region_{kHostAlign};
  at::Tensor slab_;  // bytes
};

namespace {

constexpr int64_t kCopyGrain = 1 << 18;  // bytes a task

// On the CPU, its threads share the work.
void copy_bytes(CopyStream& copies, const at::Tensor& to, const at::Tensor& from, WaitClock& waits) {
  if (to.is_meta()) return;
  const WaitClock::Scope wait(waits);
  const auto bytes = static_cast<int64_t>(from.nbytes());
  auto* const destination = static_cast<char*>(to.mutable_data_ptr());
  const auto* const source = static_cast<const char*>(from.const_data_ptr());
  at::parallel_for(0, bytes, copies.device().is_cpu() ? kCopyGrain : bytes, [&](int64_t begin, int64_t end) {
    copies.copy(destination + begin, source + begin, end - begin);
  });
}

class HostTensor : public OffloadedTensor {
 public:
  HostTensor(std::shared_ptr<HostSlab> slab, const at::Tensor& dense)
      : OffloadedTensor(slab, dense),
        slab_(std::move(slab)),
        bytes_(slab_->take(static_cast<int64_t>(dense.nbytes()))) {
    CopyStream& sends = slab_->sends();
    sends.follow();
    copy_bytes(sends, bytes_, dense, slab_->waits());
    slab_->hold(dense, [&sends, sent = sends.mark()] { sends.wait(sent); });
  }
  ~HostTensor() override {
    finish();  // waits for a copy that was fetched but not read
    bytes_.reset();
    slab_->give_back();
  }

 private:
  void start(const at::Tensor& to) override {
    // behind the last use of `to`, and behind all that was sent: FetchAhead::want has let that go
    slab_->fetches().follow();
    copy_bytes(slab_->fetches(), to, bytes_, slab_->waits());
    there_ = slab_->fetches().mark();
  }
  void finish() override { slab_->fetches().wait(there_); }

  std::shared_ptr<HostSlab> slab_;
  at::Tensor bytes_;
  CopyStream::Mark there_;
};

}  // namespace

HostStore::HostStore(c10::Device device, bool ahead) : slab_(std::make_shared<HostSlab>(device, ahead)) {}

std::unique_ptr<StoredTensor> HostStore::store(const at::Tensor& dense) {
  TORCH_CHECK(dense.device() == slab_->device(), "activations of ", slab_->device(),
              " on the host: tensors of ", dense.device());
  if (slab_->keeps()) return std::make_unique<KeptTensor>(slab_, dense);
  return std::make_unique<HostTensor>(slab_, dense);
}

void HostStore::begin_block(bool last) { slab_->begin_block(last); }

double HostStore::waited_seconds() const { return slab_->waits().seconds(); }

}  // namespace moelab
