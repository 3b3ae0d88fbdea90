#include "kernels/adam8bit.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/adam_rule.h"
#include "kernels/load_gradient.h"
#include "kernels/op_handle.h"
#include "kernels/quantize.h"
#include "kernels/stepped_weights.h"

#ifdef MOELAB_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/update_pointers.h"
#endif

namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kGrainBlocks = 64;

void check(const Tensor& master, const Tensor& gradient, const Adam8bitState& s, const OptionalTensor& copy) {
  const int64_t n = master.numel(), blocks = quant_blocks(n);
  check_step("adam8bit", master, gradient, copy);
  check_state("adam8bit", "m", s.m, at::kByte, n);
  check_state("adam8bit", "m_absmax", s.m_absmax, at::kFloat, blocks);
  check_state("adam8bit", "v", s.v, at::kByte, n);
  check_state("adam8bit", "v_absmax", s.v_absmax, at::kFloat, blocks);
}

// A block's elements in fp32.
using Block = std::array<float, kQuantBlock>;

// AdamW on a block whose moments lie in m and v.
template <class Gradient>
void update_block(const SteppedWeights& weights, const Gradient* gradient, Block& m, Block& v, int64_t first,
                  int64_t count, const AdamWFactors& f) {
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const Vec g = load_gradient(gradient + first + i, lanes, f.gradient_scale),
              weight = weights.load(first + i, lanes);
    AdamVectors x{weight, load_float(&m[i], lanes), load_float(&v[i], lanes)};
    x.update(g, f);
    const Vec finite = (g - g) == Vec(0);
    store_float(&m[i], Vec::blendv(Vec(0), x.m, finite), lanes);
    store_float(&v[i], Vec::blendv(Vec(0), x.v, finite), lanes);
    weights.store(first + i, Vec::blendv(weight, x.weight, finite), lanes);
  });
}

template <class Gradient>
void step_cpu(const Tensor& master, const Tensor& gradient, const Adam8bitState& s,
              const OptionalTensor& copy, const OptimizerStep& step) {
  const SteppedWeights weights(master, copy, step);
  const AdamWFactors f = adamw_factors(step);
  auto *pm = s.m.data_ptr<uint8_t>(), *pv = s.v.data_ptr<uint8_t>();
  float *m_absmax = s.m_absmax.data_ptr<float>(), *v_absmax = s.v_absmax.data_ptr<float>();
  const Gradient* pg = gradient.data_ptr<Gradient>();
  const int64_t n = master.numel();
  at::parallel_for(0, quant_blocks(n), kGrainBlocks, [&](int64_t begin, int64_t end) {
    Block m, v;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kQuantBlock, count = std::min(kQuantBlock, n - first);
      decode_block(BlockCode::dynamic_signed, pm + first, count, m_absmax[b], m.data());
      decode_block(BlockCode::dynamic_unsigned, pv + first, count, v_absmax[b], v.data());
      update_block(weights, pg, m, v, first, count, f);
      m_absmax[b] = encode_block(BlockCode::dynamic_signed, m.data(), count, pm + first);
      v_absmax[b] = encode_block(BlockCode::dynamic_unsigned, v.data(), count, pv + first);
    }
  });
}

void adam8bit_cpu(Tensor master, const Tensor& gradient, Tensor m, Tensor m_absmax, Tensor v, Tensor v_absmax,
                  OptionalTensor copy, at::ArrayRef<double> numbers, at::IntArrayRef counters,
                  const OptionalTensor& live) {
  const Adam8bitState state{m, m_absmax, v, v_absmax};
  check(master, gradient, state, copy);
  const auto step = step_now(numbers, counters, live);
  if (!step) return;
  with_element_type(gradient.scalar_type(),
                    [&](auto g) { step_cpu<decltype(g)>(master, gradient, state, copy, *step); });
}

void adam8bit_meta(Tensor master, const Tensor& gradient, Tensor m, Tensor m_absmax, Tensor v,
                   Tensor v_absmax, OptionalTensor copy, at::ArrayRef<double>, at::IntArrayRef,
                   const OptionalTensor&) {
  check(master, gradient, {m, m_absmax, v, v_absmax}, copy);
}

#ifdef MOELAB_WITH_CUDA
// The map's tables in a device's memory, made once and kept.
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

void adam8bit_cuda(Tensor master, const Tensor& gradient, Tensor m, Tensor m_absmax, Tensor v,
                   Tensor v_absmax, OptionalTensor copy, at::ArrayRef<double> numbers,
                   at::IntArrayRef counters, const OptionalTensor& live) {
  check(master, gradient, {m, m_absmax, v, v_absmax}, copy);
  const c10::cuda::CUDAGuard guard(master.device());
  const OptimizerStep step = step_from(numbers, counters);
  cuda::adam8bit(cuda::weight_pointers(master, copy, step), cuda::gradient_pointer(gradient),
                 m.data_ptr<uint8_t>(), m_absmax.data_ptr<float>(), v.data_ptr<uint8_t>(),
                 v_absmax.data_ptr<float>(), on_device(signed_dynamic_map(), master.device()),
                 on_device(unsigned_dynamic_map(), master.device()), master.numel(), adamw_factors(step),
                 cuda::live_call(step, live), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
#endif

using Signature = void(Tensor, const Tensor&, Tensor, Tensor, Tensor, Tensor, OptionalTensor,
                       at::ArrayRef<double>, at::IntArrayRef, const OptionalTensor&);

}  // namespace

void adam8bit_(const Tensor& master, const Tensor& gradient, const Adam8bitState& s,
               const OptionalTensor& compute_copy, const OptimizerStep& step) {
  static const auto op = operator_handle<Signature>("moelab::adam8bit_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  const StepArguments arguments(step);
  op.call(master, gradient, s.m, s.m_absmax, s.v, s.v_absmax, compute_copy, arguments.numbers,
          arguments.counters, arguments.live);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "adam8bit_(Tensor(a!) master, Tensor gradient, Tensor(b!) m, Tensor(c!) m_absmax, Tensor(d!) v, "
      "Tensor(e!) v_absmax, Tensor(f!)? compute_copy, float[] numbers, int[] counters, Tensor? live) -> ()");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) { m.impl("adam8bit_", &adam8bit_cpu); }

TORCH_LIBRARY_IMPL(moelab, Meta, m) { m.impl("adam8bit_", &adam8bit_meta); }

#ifdef MOELAB_WITH_CUDA
TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adam8bit_", &adam8bit_cuda); }
#endif

}  // namespace moelab
