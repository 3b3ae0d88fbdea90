// LibTorch's operators on the emulated device: those of the CPU, on CPU tensors that share the memory of the
// device's (call.h). Results that are new are copied to memory of the device, where our kernels meet the
// guards of runtime.cpp.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulator/call.h"
#include "tests/emulator/capture.h"
#include "tests/emulator/streams.h"

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(DeviceIndex));  // in no header
}

namespace moelab::emulator {
namespace {

using at::Tensor;
using c10::IValue;

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, device_allocator(), kDevice, dtype.value_or(at::kFloat), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kDevice,
                                           dtype.value_or(at::kFloat));
}

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
      copies.push_back({false, i, call.to_device(host).mutable_data_ptr(), host.nbytes()});
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
bool is_late_copy(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first) {
  if (op.schema().name() != "aten::copy_" || !stack[first + 2].toBool()) return false;
  const Tensor to = stack[first].toTensor(), from = stack[first + 1].toTensor();
  return may_wait(to.const_data_ptr()) && may_wait(from.const_data_ptr());
}

// Whether an operator may be done after the call. One that draws random numbers may not, because the host's
// generator gives them in the order of the calls; nor one with memory of the host that its caller may use at
// once.
bool may_be_late(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first) {
  if (op.hasTag(at::Tag::inplace_view) || op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  return std::all_of(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end(),
                     [](const IValue& value) {
                       if (!value.isTensor() || !value.toTensor().defined()) return true;
                       const Tensor& t = value.toTensor();
                       return t.is_cuda() || t.dim() == 0 || may_wait(t.const_data_ptr());
                     });
}

bool writes(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& a) {
    return a.alias_info() != nullptr && a.alias_info()->isWrite();
  });
}

// Puts the call off; its results have the shapes that meta tensors have. False: they do not tell.
bool put_off_call(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t first,
                  cudaStream_t stream) {
  Call shapes(c10::kMeta), call(c10::kCPU, /*late=*/true);
  torch::jit::Stack results, arguments;
  for (size_t i = first; i < stack->size(); ++i) results.push_back(shapes.twin((*stack)[i]));
  try {
    const at::AutoDispatchBelowADInplaceOrView without_gradients;
    op.callBoxed(&results);
  } catch (const c10::Error&) {
    return false;
  }
  std::vector<bool> is_new;
  for (IValue& result : results) {
    is_new.push_back(result.isTensor() && result.toTensor().defined() &&
                     !shapes.is_of_argument(result.toTensor()));
    result = shapes.to_device(result);
  }
  for (size_t i = first; i < stack->size(); ++i) arguments.push_back(call.twin((*stack)[i]));
  std::vector<std::pair<size_t, Tensor>> made;
  for (size_t i = 0; i < results.size(); ++i) {
    if (is_new[i]) made.emplace_back(i, call.twin(results[i]).toTensor());
  }
  stack->resize(first);
  stack->insert(stack->end(), results.begin(), results.end());
  if (made.empty() && !writes(op)) return true;  // a view
  put_off(stream, [op, arguments, made] {
    const at::AutoDispatchBelowADInplaceOrView without_gradients;
    torch::jit::Stack again(arguments);
    op.callBoxed(&again);
    for (const auto& [i, to] : made) to.copy_(again[i].toTensor());
  });
  return true;
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  TORCH_CHECK(!mixes_devices(op, *stack, first),
              "Expected all tensors to be on the same device: ", op.schema().name());
  if (waits(op, *stack, first)) {
    forbid_in_capture(op.schema().name().c_str());
    cudaStreamSynchronize(stream);
  } else if (!capturing()) {
    const bool late = is_late_copy(op, *stack, first) || (all_is_late() && may_be_late(op, *stack, first));
    if (late && put_off_call(op, stack, first, stream)) return;
    catch_up(stream);
  }
  Call call(c10::kCPU);
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = call.twin((*stack)[i]);
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
  at::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  // Seeded with the CPU's and never drawn from: random numbers are the CPU's.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  void deviceSynchronize(c10::DeviceIndex) const override { catch_up_all(); }
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

void clearCublasWorkspaces() {}  // there are none

cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device) {
  static cudaDeviceProp all = [device] {
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, device);
    return properties;
  }();
  return &all;
}

}  // namespace at::cuda
