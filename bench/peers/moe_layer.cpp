// One MoE layer, forward and backward, on the tensors of a safetensors file: the C++ half of hf_moe_layer.py.
//
//   bench_moe_layer IN.safetensors OUT.safetensors K
//
// IN holds x (T, D), dy (T, D), router (E, D), w13 (E, 2F, D), w2 (E, D, F), fp32 or bf16. OUT receives y and
// the gradients dx, drouter, dw13, dw2. Then each line N on standard input runs the layer N times and answers
// with a line of N times in milliseconds, so that the other half can take turns with this one.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <iostream>
#include <string>

#include "kernels/memory/allocators.h"
#include "moe/moe_layer.h"
#include "train/checkpoint/safetensors_file.h"

namespace moelab {
namespace {

class Layer {
 public:
  Layer(const SafetensorsFile& file, int64_t top_k) {
    x_ = leaf(file.tensor("x"));
    dy_ = file.tensor("dy");
    weights_.router_ED = leaf(file.tensor("router").to(at::kFloat));
    weights_.w13_E2FD = leaf(file.tensor("w13"));
    weights_.w2_EDF = leaf(file.tensor("w2"));
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
    const at::Tensor y = moe_layer(x_, weights_, settings_, x_.size(0), true, routing, nullptr).y_TD;
    y.backward(dy_);
    return y.detach();
  }

  std::vector<TensorEntry> results(const at::Tensor& y) const {
    return {{"y", y},
            {"dx", x_.grad()},
            {"drouter", weights_.router_ED.grad()},
            {"dw13", weights_.w13_E2FD.grad()},
            {"dw2", weights_.w2_EDF.grad()}};
  }

 private:
  static at::Tensor leaf(at::Tensor t) { return t.set_requires_grad(true); }
  std::vector<at::Tensor> leaves() const {
    return {x_, weights_.router_ED, weights_.w13_E2FD, weights_.w2_EDF};
  }

  at::Tensor x_, dy_;
  MoeWeights weights_;
  ModelSettings settings_;
};

double milliseconds(Layer& layer) {
  const auto start = std::chrono::steady_clock::now();
  layer.run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

int run(const std::string& in, const std::string& out, int64_t top_k) {
  Layer layer(SafetensorsFile(in), top_k);
  write_safetensors(out, layer.results(layer.run()));
  std::cout << "ready" << std::endl;
  for (int64_t n; std::cin >> n;) {
    for (; n > 0; --n) std::cout << milliseconds(layer) << ' ';
    std::cout << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace moelab

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: bench_moe_layer IN.safetensors OUT.safetensors K\n";
    return 2;
  }
  try {
    moelab::install_cpu_allocator();  // as the program does
    return moelab::run(argv[1], argv[2], std::stoll(argv[3]));
  } catch (const std::exception& error) {
    std::cerr << "bench_moe_layer: " << error.what() << '\n';
    return 1;
  }
}
