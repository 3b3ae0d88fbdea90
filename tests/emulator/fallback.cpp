// LibTorch's operators on the emulated device: those of the CPU, on CPU tensors that share the memory of the
// device's. A result that shares memory with an argument becomes a view of that argument; any other is copied
// to memory of the device, where our kernels meet the guards of runtime.cpp.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulator/capture.h"
#include "tests/emulator/streams.h"

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(DeviceIndex));  // in no header
}

namespace moelab::emulator {
namespace {

using at::Tensor;
using c10::IValue;

at::Allocator* allocator() { return c10::cuda::CUDACachingAllocator::get(); }

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, allocator(), kKeys, dtype.value_or(at::kFloat), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, dtype.value_or(at::kFloat));
}

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

// The tensors of one call, on both sides.
class Call {
 public:
  bool on_device = false;  // whether an argument is, or names the device

  IValue to_host(const IValue& value) {
    if (value.isTensor()) return host(value.toTensor());
    if (value.isTensorList()) return each_of(value, [&](const Tensor& t) { return host(t); });
    if (value.isList() && value.toListRef().size() > 0) {
      c10::List<IValue> all = value.toList();
      if (!all.get(0).isTensor() && !all.get(0).isNone()) return value;
      c10::List<std::optional<Tensor>> list;  // as index takes them
      for (const IValue& t : value.toListRef())
        list.push_back(t.isNone() ? std::optional<Tensor>() : host(t.toTensor()));
      return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) {
      on_device = true;
      return c10::Device(c10::kCPU);
    }
    return value;
  }

  IValue to_device(const IValue& value) {
    if (value.isTensor()) return device(value.toTensor());
    if (value.isTensorList()) return each_of(value, [&](const Tensor& t) { return device(t); });
    return value;
  }

  Tensor on_the_device(const Tensor& host) { return device(host); }

  bool is_of_argument(const Tensor& host) const {
    return std::any_of(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
      return host.defined() && pair.host.storage().is_alias_of(host.storage());
    });
  }

 private:
  struct Pair {
    Tensor device, host;
  };
  std::vector<Pair> pairs_;

  Tensor host(const Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return t;
    on_device = true;
    for (const Pair& pair : pairs_) {
      if (pair.device.is_same(t)) return pair.host;
    }
    c10::Storage storage;
    for (const Pair& pair : pairs_) {
      if (pair.device.storage().is_alias_of(t.storage())) storage = pair.host.storage();
    }
    if (!storage) {
      const c10::Storage& real = t.storage();  // lives as long as the call; as long as a graph, if it is its
      storage = c10::Storage(c10::Storage::use_byte_size_t(), real.nbytes(),
                             c10::DataPtr(const_cast<void*>(real.data()), c10::Device(c10::kCPU)),
                             c10::GetAllocator(c10::kCPU), /*resizable=*/true);
    }
    Tensor twin = tensor_on(storage, c10::DispatchKeySet(c10::DispatchKey::CPU), t);
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) twin.unsafeGetTensorImpl()->set_wrapped_number(true);
    pairs_.push_back({t, twin});
    return twin;
  }

  Tensor device(const Tensor& t) {
    if (!t.defined() || !on_device) return t;
    for (const Pair& pair : pairs_) {
      if (!pair.host.storage().is_alias_of(t.storage())) continue;
      if (pair.host.is_same(t)) return written(pair);
      return tensor_on(pair.device.storage(), kKeys, t);
    }
    Tensor copy =
        at::detail::empty_strided_generic(t.sizes(), t.strides(), allocator(), kKeys, t.scalar_type());
    std::memcpy(copy.mutable_data_ptr(), t.const_data_ptr(),
                std::min(copy.storage().nbytes(), t.storage().nbytes() - t.storage_offset() * t.itemsize()));
    return copy;
  }

  // An argument that is also the result: it may have another shape now, and more memory.
  static Tensor written(const Pair& pair) {
    Tensor real = pair.device;
    if (pair.host.storage().data() != real.storage().data()) {
      c10::DataPtr data = allocator()->allocate(pair.host.storage().nbytes());
      std::memcpy(data.get(), pair.host.storage().data(), pair.host.storage().nbytes());
      real.storage().set_data_ptr(std::move(data));
      real.storage().set_nbytes(pair.host.storage().nbytes());
    }
    real.unsafeGetTensorImpl()->set_sizes_and_strides(pair.host.sizes(), pair.host.strides(),
                                                      pair.host.storage_offset());
    return real;
  }
};

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
}

bool is_bool(const Tensor& t) {
  return t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
}

// LibTorch's CUDA operators that wait for the device.
bool waits(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first) {
  const std::string& name = op.schema().name();
  if (is_one_of(name, {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select",
                       "aten::_unique2", "aten::bincount", "aten::repeat_interleave"}))
    return true;
  if (is_one_of(name, {"aten::index", "aten::index_put_", "aten::_index_put_impl_"})) {
    const auto indices = stack[first + 1].toOptionalTensorList().vec();
    return std::any_of(indices.begin(), indices.end(), [](const auto& i) { return i && is_bool(*i); });
  }
  if (name != "aten::copy_") return false;
  const Tensor to = stack[first].toTensor(), from = stack[first + 1].toTensor();
  return to.is_cuda() != from.is_cuda() && !stack[first + 2].toBool();
}

// A tensor of the host among those of the device, which LibTorch refuses but for copies, indices and numbers.
bool mixes_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first) {
  if (is_one_of(op.schema().name(),
                {"aten::copy_", "aten::index", "aten::index_put_", "aten::_index_put_impl_"}))
    return false;
  bool device = false, host = false;
  for (size_t i = first; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const Tensor& t = stack[i].toTensor();
    device = device || t.is_cuda();
    host = host || (t.is_cpu() && t.dim() > 0);
  }
  return device && host;
}

// Takes an operator's results from the host.
void finish(const c10::OperatorHandle& op, torch::jit::Stack* stack, Call& call) {
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = call.to_device((*stack)[i]);
}

// In a capture nothing is done, but the shapes of the results have to be known: the operator runs once, with
// what it writes saved and restored, and at each replay on the same memory again.
void capture(const c10::OperatorHandle& op, torch::jit::Stack* stack, Call& call) {
  struct Copy {  // of what the host computed elsewhere than in the device's memory
    bool is_result;
    size_t index;
    void* to;
    size_t bytes;
  };
  const auto& schema = op.schema();
  const std::vector<IValue> arguments = torch::jit::last(*stack, schema.arguments().size()).vec();
  std::vector<std::pair<size_t, Tensor>> written;  // arguments, and what they held before
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.emplace_back(i, arguments[i].toTensor().clone());
  }
  // What indices hold is not there before a replay: those of the one run point at the first element.
  if (is_one_of(schema.name(), {"aten::gather", "aten::index_select"}))
    (*stack)[stack->size() - arguments.size() + 2] = at::zeros_like(arguments[2].toTensor());
  op.callBoxed(stack);
  const std::vector<IValue> results = torch::jit::last(*stack, schema.returns().size()).vec();
  finish(op, stack, call);
  std::vector<Copy> copies;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].isTensor() || !results[i].toTensor().defined() ||
        call.is_of_argument(results[i].toTensor()))
      continue;
    const Tensor on_device = (*stack)[stack->size() - results.size() + i].toTensor();
    copies.push_back({true, i, on_device.mutable_data_ptr(), results[i].toTensor().nbytes()});
  }
  for (const auto& [i, before] : written) {
    const Tensor host = arguments[i].toTensor();
    if (host.sizes() == before.sizes()) {
      host.copy_(before);
    } else {  // it had no memory until now
      copies.push_back({false, i, call.on_the_device(host).mutable_data_ptr(), host.nbytes()});
    }
  }
  record([op, arguments, copies] {
    torch::jit::Stack again(arguments);
    op.callBoxed(&again);
    for (const Copy& copy : copies)
      std::memcpy(copy.to, (copy.is_result ? again : arguments)[copy.index].toTensor().const_data_ptr(),
                  copy.bytes);
  });
}

// A copy on a stream of its own, for which nothing waits yet, comes late.
bool copies_late(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first) {
  if (capturing() || op.schema().name() != "aten::copy_" || !stack[first + 2].toBool()) return false;
  const Tensor to = stack[first].toTensor(), from = stack[first + 1].toTensor();
  return may_wait(to.const_data_ptr()) && may_wait(from.const_data_ptr());
}

void put_off_copy(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t first,
                  cudaStream_t stream) {
  Call call;
  const IValue to = (*stack)[first];
  torch::jit::Stack arguments;
  for (size_t i = first; i < stack->size(); ++i) arguments.push_back(call.to_host((*stack)[i]));
  put_off(stream, [op, arguments] {
    torch::jit::Stack again(arguments);
    op.callBoxed(&again);
  });
  stack->resize(first);
  stack->push_back(to);
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  if (waits(op, *stack, first)) {
    forbid_in_capture(op.schema().name().c_str());
    cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream());
  }
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  if (copies_late(op, *stack, first)) return put_off_copy(op, stack, first, stream);
  if (!capturing()) catch_up(stream);
  TORCH_CHECK(!mixes_devices(op, *stack, first),
              "Expected all tensors to be on the same device: ", op.schema().name());
  Call call;
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = call.to_host((*stack)[i]);
  if (capturing() && call.on_device) return capture(op, stack, call);
  op.callBoxed(stack);
  finish(op, stack, call);
}

}  // namespace

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return c10::cuda::device_count() > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return hasCUDA(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return c10::cuda::device_count(); }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  int getNumGPUs() const override { return c10::cuda::device_count(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  at::Allocator* getCUDADeviceAllocator() const override { return allocator(); }
  // Seeded with the CPU's and never drawn from: random numbers are the CPU's.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};

[[maybe_unused]] static const bool ready = [] {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) == cudaSuccess) c10::cuda::CUDACachingAllocator::init(gpus);
  return true;
}();

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  // written once for all devices in LibTorch, on kernels that the CPU's library has for the CPU alone
  for (const char* const name : {"copy_", "_grouped_mm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_host>());
  m.impl(
      "record_stream", +[](Tensor&, c10::Stream) {});
}

}  // namespace moelab::emulator

namespace at {

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, moelab::emulator::Hooks)  // by this name it is looked up

}  // namespace at

namespace at::cuda {

cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device) {
  static cudaDeviceProp all = [device] {
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, device);
    return properties;
  }();
  return &all;
}

}  // namespace at::cuda
