// Times our fp32 product and LibTorch's at the shapes of moe-micro's experts. It is the C++ half of
// hf_mixtral.py's r, the ratio of the two rates.
//
//   bench_products
//
// moelab::linear and at::mm compute each product in turns. `backward` is the two products towards the input
// and the weight. Prints one line of JSON: {"w13 forward": {"moelab": [ms, …], "library": [ms, …]}, …}.
// Results that differ are an error, not a time.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/dense/linear.h"
#include "kernels/memory/allocators.h"

namespace moelab {
namespace {

using at::Tensor;

constexpr int64_t kRows = 1024;  // of an expert: 2048 tokens, 2 of 4 experts each, evenly
constexpr int64_t kWidth = 384, kExpertWidth = 1024;
constexpr int kCalls = 15;

double milliseconds(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void check_equal(const Tensor& found, const Tensor& wanted) {
  const double error = ((found - wanted).norm() / wanted.norm()).item<double>();
  TORCH_CHECK(error <= 1e-5, "the two products differ by ", error);
}

// x (rows, K) by the transpose of w (N, K), forward and backward, on each side.
class Products {
 public:
  Products(int64_t N, int64_t K) {
    x_ = at::randn({kRows, K}).set_requires_grad(true);
    w_ = at::randn({N, K}).set_requires_grad(true);
    dy_ = at::randn({kRows, N});
  }

  void forward() { y_ = moelab::linear(x_, w_); }
  void backward() {
    x_.mutable_grad() = w_.mutable_grad() = Tensor();
    torch::autograd::backward({y_}, {dy_});
  }
  void library_forward() { library_y_ = at::mm(x_.detach(), w_.detach().t()); }
  void library_backward() {
    dx_ = at::mm(dy_, w_.detach());
    dw_ = at::mm(dy_.t(), x_.detach());
  }

  void check() const {
    check_equal(y_.detach(), library_y_);
    check_equal(x_.grad(), dx_);
    check_equal(w_.grad(), dw_);
  }

 private:
  Tensor x_, w_, dy_, y_, library_y_, dx_, dw_;
};

void measure(const std::string& name, int64_t N, int64_t K, nlohmann::ordered_json& found) {
  Products products(N, K);
  const auto time_all = [&](nlohmann::ordered_json& times) {
    const auto add = [&](const char* pass, const char* side, const std::function<void()>& call) {
      times[name + " " + pass][side].push_back(milliseconds(call));
    };
    add("forward", "moelab", [&] { products.forward(); });
    add("forward", "library", [&] { products.library_forward(); });
    add("backward", "moelab", [&] { products.backward(); });
    add("backward", "library", [&] { products.library_backward(); });
  };
  nlohmann::ordered_json warm_up;
  time_all(warm_up);
  products.check();
  for (int i = 0; i < kCalls; ++i) time_all(found);
}

int run() {
  install_cpu_allocator();  // as the program does
  at::manual_seed(3);
  nlohmann::ordered_json found;
  measure("w13", 2 * kExpertWidth, kWidth, found);
  measure("w2", kWidth, kExpertWidth, found);
  std::cout << found << '\n';
  return 0;
}

}  // namespace
}  // namespace moelab

int main() {
  try {
    return moelab::run();
  } catch (const std::exception& error) {
    std::cerr << "bench_products: " << error.what() << '\n';
    return 1;
  }
}
