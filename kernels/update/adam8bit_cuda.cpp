#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <utility>

#include "kernels/formats/quantize.h"
#include "kernels/update/step_factors.h"
#include "kernels/update/update_operator_cuda.h"

namespace moelab {
namespace {

using at::Tensor;

// The map's tables in device memory, made once and kept.
cuda::MapPointers on_device(const DynamicMap& map, c10::Device device) {
  static std::mutex mutex;
  static auto* const tables = new std::map<std::pair<const DynamicMap*, int>, std::pair<Tensor, Tensor>>;
  const std::lock_guard lock(mutex);
  auto& [value, bin] = (*tables)[{&map, device.index()}];
  if (!value.defined()) {
    const auto upload = [&](const void* data, size_t count, at::ScalarType type) {
      return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(count)}, type).to(device);
    };
    value = upload(map.value.data(), map.value.size(), at::kFloat);
    bin = upload(map.bin.data(), map.bin.size(), at::kInt);
  }
  return {value.const_data_ptr<float>(), bin.const_data_ptr<int32_t>()};
}

void step_cuda(const UpdateTensors& t, const OptimizerStep& step, const cuda::CapturableCall& live,
               cudaStream_t stream) {
  const Tensor &m = t.state[0], &m_absmax = t.state[1], &v = t.state[2], &v_absmax = t.state[3];
  const c10::Device device = t.weights.device();
  cuda::adam8bit(cuda::weight_pointers(t.weights, t.compute_copy, step), cuda::gradient_pointer(t.gradient),
                 m.data_ptr<uint8_t>(), m_absmax.data_ptr<float>(), v.data_ptr<uint8_t>(),
                 v_absmax.data_ptr<float>(), on_device(signed_dynamic_map(), device),
                 on_device(unsigned_dynamic_map(), device), t.weights.numel(), adamw_factors(step), live,
                 stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adam8bit_", update_on_cuda<step_cuda>); }

}  // namespace moelab
