#include "tests/emulator/call.h"

#include <ATen/EmptyTensor.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstring>

#include "tests/emulator/streams.h"

namespace moelab::emulator {
namespace {

using at::Tensor;
using c10::IValue;

Tensor tensor_on(c10::Storage storage, c10::DispatchKeySet keys, const Tensor& like) {
  Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return t;
}

template <class F>
c10::List<Tensor> each_of(const IValue& tensors, const F& f) {
  c10::List<Tensor> list;
  for (const Tensor& t : tensors.toTensorVector()) list.push_back(f(t));
  return list;
}

}  // namespace

at::Allocator* device_allocator() { return c10::cuda::CUDACachingAllocator::get(); }

IValue Call::twin(const IValue& value) {
  if (value.isTensor()) return twin_of(value.toTensor());
  if (value.isTensorList()) return each_of(value, [&](const Tensor& t) { return twin_of(t); });
  if (value.isList() && !value.toListRef().empty()) {
    c10::List<IValue> all = value.toList();
    if (!all.get(0).isTensor() && !all.get(0).isNone()) return value;
    c10::List<std::optional<Tensor>> list;  // as index takes them
    for (const IValue& t : value.toListRef())
      list.push_back(t.isNone() ? std::optional<Tensor>() : twin_of(t.toTensor()));
    return list;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) {
    on_device = true;
    return c10::Device(side_);
  }
  return value;
}

IValue Call::to_device(const IValue& value) {
  if (value.isTensor()) return to_device(value.toTensor());
  if (value.isTensorList()) return each_of(value, [&](const Tensor& t) { return to_device(t); });
  return value;
}

bool Call::is_of_argument(const Tensor& twin) const {
  return std::any_of(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
    return twin.defined() && pair.twin.storage().is_alias_of(twin.storage());
  });
}

Tensor Call::twin_of(const Tensor& t) {
  if (!t.defined()) return t;
  on_device = on_device || t.is_cuda();
  if (t.is_cpu() && side_ == c10::kCPU) {
    if (!late_) return t;
    if (!may_wait(t.const_data_ptr())) {
      const Tensor kept = t.clone();
      kept.unsafeGetTensorImpl()->set_wrapped_number(t.unsafeGetTensorImpl()->is_wrapped_number());
      return kept;
    }
  }
  for (const Pair& pair : pairs_) {
    if (pair.real.is_same(t)) return pair.twin;
  }
  const Tensor twin = new_twin(t);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) twin.unsafeGetTensorImpl()->set_wrapped_number(true);
  pairs_.push_back({t, twin});
  return twin;
}

// Lives as long as the call; as long as a graph, if it is its. It does not keep the memory.
Tensor Call::new_twin(const Tensor& t) const {
  c10::Storage storage;
  for (const Pair& pair : pairs_) {
    if (pair.real.storage().is_alias_of(t.storage())) storage = pair.twin.storage();
  }
  if (!storage) {
    void* const memory = side_ == c10::kMeta ? nullptr : const_cast<void*>(t.storage().data());
    storage = c10::Storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                           c10::DataPtr(memory, c10::Device(side_)), c10::GetAllocator(side_),
                           /*resizable=*/true);
  }
  const auto key = side_ == c10::kMeta ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
  return tensor_on(storage, c10::DispatchKeySet(key), t);
}

Tensor Call::to_device(const Tensor& t) {
  if (!t.defined() || !on_device) return t;
  for (const Pair& pair : pairs_) {
    if (!pair.twin.storage().is_alias_of(t.storage())) continue;
    if (pair.twin.is_same(t)) return written(pair);
    return tensor_on(pair.real.storage(), kDevice, t);
  }
  Tensor copy =
      at::detail::empty_strided_generic(t.sizes(), t.strides(), device_allocator(), kDevice, t.scalar_type());
  if (side_ == c10::kCPU) {
    std::memcpy(copy.mutable_data_ptr(), t.const_data_ptr(),
                std::min(copy.storage().nbytes(), t.storage().nbytes() - t.storage_offset() * t.itemsize()));
  }
  return copy;
}

// An argument that is also the result: it may have another shape now, and more memory.
Tensor Call::written(const Pair& pair) const {
  Tensor real = pair.real;
  const c10::Storage& storage = pair.twin.storage();
  const bool moved = side_ == c10::kCPU ? storage.data() != real.storage().data()
                                        : storage.nbytes() > real.storage().nbytes();
  if (moved) {
    c10::DataPtr data = device_allocator()->allocate(storage.nbytes());
    if (side_ == c10::kCPU) std::memcpy(data.get(), storage.data(), storage.nbytes());
    real.storage().set_data_ptr(std::move(data));
    real.storage().set_nbytes(storage.nbytes());
  }
  real.unsafeGetTensorImpl()->set_sizes_and_strides(pair.twin.sizes(), pair.twin.strides(),
                                                    pair.twin.storage_offset());
  return real;
}

}  // namespace moelab::emulator
