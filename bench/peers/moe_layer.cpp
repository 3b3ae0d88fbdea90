// One MoE layer, forward and backward, on the tensors of a safetensors file: the C++ half of hf_moe_layer.py.
//
//   bench_moe_layer IN.safetensors OUT.safetensors K [cpu|cuda]
//
// IN holds x (T, D), dy (T, D), router (E, D), w13 (E, 2F, D), w2 (E, D, F), fp32 or bf16. OUT receives y and
// the gradients dx, drouter, dw13, dw2. Then a line "ready COMMIT" is printed: the commit of what this was
// built from. Each line N on standard input runs the layer N times and answers with a line of N times in
// milliseconds, so that the other half can take turns with this one.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <iostream>
#include <string>

#include "kernels/memory/allocators.h"
#include "moe/moe_layer.h"
#include "train/checkpoint/safetensors_file.h"
#include "train/program/record/build_commit.h"

namespace moelab {
namespace {

class Layer {
 public:
  Layer(const SafetensorsFile& file, int64_t top_k, c10::Device device) {
    const auto leaf = [&](const char* name) { return file.tensor(name).to(device).set_requires_grad(true); };
    x_ = leaf("x");
    dy_ = file.tensor("dy").to(device);
    weights_.router_ED = file.tensor("router").to(device, at::kFloat).set_requires_grad(true);
    weights_.w13_E2FD = leaf("w13");
    weights_.w2_EDF = leaf("w2");
    settings_.d_model = x_.size(1);
    settings_.experts = weights_.w13_E2FD.size(0);
    settings_.d_expert = weights_.w2_EDF.size(2);
    settings_.experts_per_token = top_k;
    settings_.dispatch = Dispatch::dropless;
    settings_.norm_topk = true;
  }

  at::Tensor run() {
    for (const at::Tensor& t : leaves()) t.mutable_grad() = at::Tensor();
    RoutingState routing;
    const at::Tensor y = moe_layer(x_, weights_, {settings_, x_.size(0), /*training=*/true}, routing).y_TD;
    y.backward(dy_);
    return y.detach();
  }

  std::vector<TensorEntry> results(const at::Tensor& y) const {
    return {{"y", y.cpu()},
            {"dx", x_.grad().cpu()},
            {"drouter", weights_.router_ED.grad().cpu()},
            {"dw13", weights_.w13_E2FD.grad().cpu()},
            {"dw2", weights_.w2_EDF.grad().cpu()}};
  }

 private:
  std::vector<at::Tensor> leaves() const {
    return {x_, weights_.router_ED, weights_.w13_E2FD, weights_.w2_EDF};
  }

  at::Tensor x_, dy_;
  MoeWeights weights_;
  ModelSettings settings_;
};

double milliseconds(Layer& layer) {
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor y = layer.run();
  if (y.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(y.device().index());
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

int run(const std::string& in, const std::string& out, int64_t top_k, c10::Device device) {
  Layer layer(SafetensorsFile(in), top_k, device);
  write_safetensors(out, layer.results(layer.run()));
  std::cout << "ready " << build_commit() << std::endl;
  for (int64_t n; std::cin >> n;) {
    for (; n > 0; --n) std::cout << milliseconds(layer) << ' ';
    std::cout << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace moelab

int main(int argc, char** argv) {
  const std::string device = argc > 4 ? argv[4] : "cpu";
  if (argc < 4 || argc > 5 || (device != "cpu" && device != "cuda")) {
    std::cerr << "usage: bench_moe_layer IN.safetensors OUT.safetensors K [cpu|cuda]\n";
    return 2;
  }
  try {
    moelab::install_cpu_allocator();  // as the program does
    return moelab::run(argv[1], argv[2], std::stoll(argv[3]), c10::Device(device));
  } catch (const std::exception& error) {
    std::cerr << "bench_moe_layer: " << error.what() << '\n';
    return 1;
  }
}
