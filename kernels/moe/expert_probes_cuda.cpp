#include "kernels/moe/expert_probes.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/device/element_of.h"
#include "kernels/memory/device_memory.h"
#include "kernels/moe/dispatch.h"
#include "kernels/moe/expert_block_call.h"
#include "kernels/moe/expert_variants.h"
#include "kernels/moe/grouped_products.h"
#include "kernels/moe/router_gpu_products.h"
#include "kernels/operator/gpu.h"

// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows grouped by expert.
namespace moelab {
namespace {

using at::Tensor;

enum class Load { random, one_expert, holes };  // holes: a third of the ids are -1

struct Layer {
  const char* about;
  ExpertSizes sizes;
  Load load;
  bool is_the_runs = false;
};

// What operators of one layer share. Rows that no route fills are NaN, which may reach no result.
struct Inputs {
  int64_t T, D, K, E, F, R;
  at::ScalarType type;
  c10::Device gpu;
  Tensor weights_TK, route_R;  // undefined in a dense layer
  Routes routes;

  Inputs(const Layer& layer, c10::Device device)
      : T(layer.sizes.tokens),
        D(layer.sizes.width),
        K(layer.sizes.per_token),
        E(layer.sizes.experts),
        F(layer.sizes.expert_width),
        R(T),
        type(layer.sizes.type),
        gpu(device) {
    at::manual_seed(11);
    if (E > 0) take_routes(layer.load);
  }

  Tensor normal(at::IntArrayRef shape, double scale = 1) const {
    return (at::randn(shape, at::TensorOptions(gpu).dtype(at::kFloat)) * scale).to(type);
  }
  Tensor rows(int64_t columns) const {
    const Tensor all = normal({R, columns});
    return E > 0 ? all.masked_fill_(used().logical_not(), std::nan("")) : all;
  }
  Tensor used() const { return route_R.ge(0).unsqueeze(1); }
  // In fp32, with zeros in the rows that no route fills.
  Tensor filled(const Tensor& rows_RI) const {
    const Tensor wide = rows_RI.to(at::kFloat);
    return E > 0 ? at::where(used(), wide, at::zeros_like(wide)) : wide;
  }
  const int32_t* route() const { return E > 0 ? route_R.const_data_ptr<int32_t>() : nullptr; }
  const float* weights() const { return E > 0 ? weights_TK.const_data_ptr<float>() : nullptr; }

 private:
  void take_routes(Load load) {
    Tensor scores = at::rand({T, E}, at::TensorOptions(gpu).dtype(at::kFloat));
    if (load == Load::one_expert) scores.select(1, 0).fill_(2);
    Tensor ids = std::get<1>(scores.topk(K, 1)).to(at::kInt).contiguous();
    if (load == Load::holes) ids.view(-1).slice(0, 0, c10::nullopt, 3).fill_(-1);
    routes = dropless_routes(ids, E);
    R = routes.rows;
    weights_TK = at::rand({T, K}, scores.options()) + 0.1;
    route_R = at::empty({R}, ids.options());
    cuda::invert_routes(routes.row_TK.const_data_ptr<int32_t>(), T * K, route_R.mutable_data_ptr<int32_t>(),
                        R, c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

// A term of a 16-bit operator's sum in fp32 may be off by more than its rounding, because exponentials are
// the hardware's approximate ones.
constexpr int64_t kApproximate = 64;

Trial combine_trial(const Inputs& in) {
  const Tensor from = in.rows(in.D), to = at::empty({in.T, in.D}, from.options());
  const auto call = [=]() -> Results {
    cuda::combine_rows(cuda::element_of(from), from.const_data_ptr(),
                       in.routes.row_TK.const_data_ptr<int32_t>(), in.weights(), in.T, in.K, in.D,
                       to.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {to};
  };
  const auto reference = [=]() -> Results {
    const Tensor row = in.routes.row_TK, weight = at::where(row.ge(0), in.weights_TK, 0);
    const Tensor parts = in.filled(from).index_select(0, row.clamp_min(0).flatten().to(at::kLong));
    return {(parts.view({in.T, in.K, in.D}) * weight.unsqueeze(2)).sum(1)};
  };
  return {[] {}, call, reference, in.K};
}

struct Gated {
  Tensor gate, up, s;  // fp32; s: sigmoid of the gate
  Gated(const Tensor& h_R2F, int64_t F)
      : gate(h_R2F.narrow(1, 0, F)), up(h_R2F.narrow(1, F, F)), s(gate.sigmoid()) {}
};

Trial swiglu_trial(const Inputs& in) {
  const Tensor first = in.rows(2 * in.F), h = first.clone(), a = at::empty({in.R, in.F}, h.options());
  const auto restore = [=] { Tensor(h).copy_(first); };
  const auto call = [=]() -> Results {
    cuda::swiglu(cuda::element_of(h), h.mutable_data_ptr(), in.route(), in.R, in.F, a.mutable_data_ptr(),
                 c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {a, h};
  };
  const auto reference = [=]() -> Results {
    const Tensor wide = in.filled(first);
    const Gated x(wide, in.F);
    return {x.gate * x.s * x.up, wide};
  };
  return {restore, call, reference};
}

Trial swiglu_backward_trial(const Inputs& in) {
  const Tensor first_h = in.rows(2 * in.F), first_da = in.rows(in.F), h = first_h.clone(),
               da = first_da.clone();
  const Tensor dscale = in.E > 0 ? at::empty({in.R}, in.weights_TK.options()) : Tensor();
  const auto restore = [=] {
    Tensor(h).copy_(first_h);
    Tensor(da).copy_(first_da);
  };
  const auto call = [=]() -> Results {
    cuda::swiglu_backward(cuda::element_of(h), h.mutable_data_ptr(), da.mutable_data_ptr(), in.route(),
                          in.weights(), dscale.defined() ? dscale.mutable_data_ptr<float>() : nullptr, in.R,
                          in.F, c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return dscale.defined() ? Results{h, da, dscale} : Results{h, da};
  };
  const auto reference = [=]() -> Results {
    const Gated x(in.filled(first_h), in.F);
    const Tensor gradient = in.filled(first_da), silu = x.gate * x.s, activation = silu * x.up;
    Tensor scale = at::ones({in.R, 1}, gradient.options());
    if (in.E > 0)
      scale = in.weights_TK.flatten().index_select(0, in.route_R.clamp_min(0).to(at::kLong)).unsqueeze(1);
    const Tensor weighted = scale * gradient;
    const Tensor dh = at::cat({weighted * x.up * x.s * (1 + x.gate * (1 - x.s)), weighted * silu}, 1);
    if (in.E == 0) return {dh, activation};
    return {dh, scale * activation, (gradient * activation).sum(1)};
  };
  return {restore, call, reference, kApproximate * in.F};
}

// Forward and backward of the whole block. The plain variant is LibTorch's product, an expert at a time. The
// gradient of the router's weights, in fp32, is compared in the layer's type, to which the terms of its sums
// have been rounded: another order of the products' sums can round them to a neighbour.
Trial products_trial(const Inputs& in) {
  const Tensor x = in.normal({in.T, in.D}), dy = in.normal({in.T, in.D}),
               w13 = in.normal({in.E, 2 * in.F, in.D}, 1 / std::sqrt(static_cast<double>(in.D))),
               w2 = in.normal({in.E, in.D, in.F}, 1 / std::sqrt(static_cast<double>(in.F)));
  const auto call = [=]() -> Results {
    const expert_block_detail::ExpertCall block{
        x,  in.weights_TK,  in.routes.row_TK, in.routes.offsets_E1, w13,
        w2, in.routes.rows, in.routes.widest, /*fp8=*/false};
    const auto [y, h] = expert_block_detail::expert_block_forward(block, /*keep=*/true);
    const auto [dx, dweights, dw13, dw2] = expert_block_detail::expert_block_backward(block, dy, h);
    return {y, dx, dweights.to(in.type), dw13, dw2};
  };
  return {[] {}, call, {}, in.D + in.F + in.T};
}

struct RouterInputs {
  Tensor x, w, logits, dx, dw;
  explicit RouterInputs(const Inputs& in)
      : x(in.normal({in.T, in.D})),
        w(at::randn({in.E, in.D}, x.options().dtype(at::kFloat))),
        logits(at::randn({in.T, in.E}, w.options())),
        dx(at::empty_like(x)),
        dw(at::empty_like(w)) {}
};

Trial router_logits_trial(const Inputs& in) {
  const RouterInputs r(in);
  const auto call = [=]() -> Results {
    router_detail::router_logits(r.x, r.w, r.logits);
    return {r.logits};
  };
  const auto reference = [=]() -> Results { return {at::mm(r.x.to(at::kFloat), r.w.t())}; };
  return {[] {}, call, reference, 4 * in.D};
}

Trial router_gradients_trial(const Inputs& in) {
  const RouterInputs r(in);
  const auto call = [=]() -> Results {
    router_detail::router_gradients(r.x, r.w, r.logits, r.dx, r.dw);
    return {r.dx, r.dw};
  };
  const auto reference = [=]() -> Results {
    return {at::mm(r.logits, r.w), at::mm(r.logits.t(), r.x.to(at::kFloat))};
  };
  return {[] {}, call, reference, 4 * (in.T + in.E)};
}

// The most elements of a matrix of all rows: of 16 bits, 1/128 of the GPU's memory, so that what a trial and
// its reference in fp32 hold is a sixth of it.
int64_t most_elements(c10::Device gpu) { return std::max(int64_t{1} << 25, total_memory(gpu) / 256); }

std::vector<Layer> layers(const ExpertSizes& run, c10::Device gpu) {
  const bool dense = run.experts == 0;
  const auto small = [&](int64_t tokens, int64_t width, int64_t experts, int64_t expert_width) {
    ExpertSizes sizes = run;
    sizes.tokens = tokens;
    sizes.width = width;
    sizes.experts = dense ? 0 : experts;
    sizes.per_token = dense ? 1 : 2;
    sizes.expert_width = expert_width;
    return sizes;
  };
  ExpertSizes at_most = run;
  const int64_t widest = run.per_token * std::max(run.width, run.expert_width);
  at_most.tokens = std::clamp<int64_t>(run.tokens, 1, std::max<int64_t>(1, most_elements(gpu) / widest));
  return {{"one token", small(1, 64, 4, 40), Load::random},
          {"experts without rows", small(3, 64, 16, 40), Load::random},
          {"all tokens at one expert", small(70, 64, 4, 40), Load::one_expert},
          {"ids of -1", small(48, 64, 4, 200), Load::holes},
          {"odd widths", small(9, 19, 3, 13), Load::random},
          {"the run's sizes", at_most, Load::random, true}};
}

}  // namespace

std::vector<OperatorProbe> expert_probes(const ExpertSizes& run, c10::Device gpu) {
  std::vector<OperatorProbe> probes;
  const int capability = compute_capability(gpu);
  for (const Layer& layer : layers(run, gpu)) {
    const auto add = [&](VariedOperator& op, Trial (*trial)(const Inputs&), bool timed = true) {
      probes.push_back(
          {&op, layer.about, [=] { return trial(Inputs(layer, gpu)); }, timed && layer.is_the_runs});
    };
    const ExpertSizes& s = layer.sizes;
    if (s.experts > 0) add(cuda::combine_rows, &combine_trial);
    if (s.experts > 0 && s.type == at::kBFloat16) {
      add(router_detail::router_logits, &router_logits_trial);
      add(router_detail::router_gradients, &router_gradients_trial);
    }
    add(cuda::swiglu, &swiglu_trial);
    add(cuda::swiglu_backward, &swiglu_backward_trial);
    const bool groups = s.experts > 0 && !run.fp8 &&
                        serves_gathered_products(capability, run.type, run.width, run.expert_width) &&
                        serves_gathered_products(capability, s.type, s.width, s.expert_width);
    if (groups) add(expert_products, &products_trial, !run.captured);
  }
  return probes;
}

}  // namespace moelab
