#include "tests/kernels/cases/update_rules.h"

#include "bench/kernels/operation.h"
#include "kernels/formats/compact_format.h"
#include "kernels/formats/packed_blocks.h"
#include "kernels/update/adamw_compact.h"

// The update rules' steps and the codes of stored activations, on the expert weights of one layer of
// moe-micro. "fp32": weights and gradient; "bf16": the gradient, and a bf16 copy of the weights.
namespace moelab::bench {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Size {
  const char* name;
  int64_t rows, columns;
};
constexpr Size kSizes[] = {{"small", 131, 533}, {"moe_micro_experts", 4 * 3 * 1024, 384}};
constexpr Size kGpuSize = {"64_of_1024", 64 * 3 * 1024, 2048};  // too large for any cache

const OptimizerStep kNumbers{.lr = 1e-4, .weight_decay = 0.1, .step = 1000};

double bytes(const Tensor& t) { return static_cast<double>(t.nbytes()); }

double bytes(const Tensors& tensors) {
  double sum = 0;
  for (const Tensor& t : tensors) sum += bytes(t);
  return sum;
}

Tensor normal(const Size& size, at::ScalarType dtype, c10::Device device) {
  at::manual_seed(1);
  return at::randn({size.rows, size.columns}, device).to(dtype);
}

std::string path(const std::string& name, const Size& size, at::ScalarType dtype) {
  return name + "/" + size.name + "/" + test::dtype_name(dtype);
}

void add(const std::string& case_path, c10::Device device, double least_bytes, const MakeOperation& make) {
  add_benchmark(case_path, device, Pass::forward, false, {.bytes = least_bytes}, make);
}

void add_rule(const std::string& name, const test::UpdateRule& rule, const Size& size,
              at::ScalarType gradient_type, bool master, c10::Device device) {
  const bool has_copy = master && gradient_type == at::kBFloat16;
  const double elements = static_cast<double>(size.rows * size.columns);
  const double least =
      elements * ((master ? 8 : 4) + test::element_bytes(gradient_type) + (has_copy ? 2 : 0)) +
      2 * bytes(rule.make_state(size.rows, size.columns));
  add(path(name, size, gradient_type), device, least, [=] {
    const Tensor weights = normal(size, master ? at::kFloat : at::kBFloat16, device);
    const Tensor gradient = normal(size, gradient_type, device);
    const auto copy = has_copy ? std::optional(weights.to(at::kBFloat16)) : std::nullopt;
    Tensors state = rule.make_state(size.rows, size.columns);
    for (Tensor& t : state) t = t.to(device);
    return Operation{.forward = [=] {
      rule.step(weights, gradient, state, copy, kNumbers);
      return Tensors{};
    }};
  });
}

void add_compact(const Size& size, c10::Device device) {
  const int64_t n = size.rows * size.columns, groups = quant_blocks(n, kCompactGroup);
  const double least = static_cast<double>(n) * (2 * (3 + 2) + 2) + static_cast<double>(groups) * 2 * 4;
  add(path("adamw_compact", size, at::kBFloat16), device, least, [=] {
    const Tensor weights = normal(size, at::kBFloat16, device),
                 gradient = normal(size, at::kBFloat16, device);
    const auto zeros = [&](int64_t count, at::ScalarType type) {
      return at::zeros({count}, at::TensorOptions(device).dtype(type));
    };
    const CompactState state{zeros(n, at::kChar), zeros(groups, at::kShort), zeros(n, at::kByte),
                             zeros(groups, at::kShort), zeros(n, at::kChar)};
    return Operation{.forward = [=] {
      adamw_compact_(weights, gradient, state, kNumbers);
      return Tensors{};
    }};
  });
}

void add_packing(const std::string& name, BlockCode code, const Size& size, at::ScalarType dtype,
                 c10::Device device) {
  const int64_t n = size.rows * size.columns;
  const double least =
      static_cast<double>(n) * (1 + test::element_bytes(dtype)) + 4 * static_cast<double>(quant_blocks(n));
  add(path("pack_" + name, size, dtype), device, least, [=] {
    const Tensor x = normal(size, dtype, device);
    return Operation{.forward = [=] { return Tensors{pack_blocks(x, code, kQuantBlock)}; }};
  });
  add(path("unpack_" + name, size, dtype), device, least, [=] {
    const Tensor x = normal(size, dtype, device), packed = pack_blocks(x, code, kQuantBlock);
    return Operation{.forward = [=] {
      unpack_blocks(packed, code, kQuantBlock, x);
      return Tensors{};
    }};
  });
}

}  // namespace

void add_update_rules(c10::Device device) {
  std::vector<Size> sizes(std::begin(kSizes), std::end(kSizes));
  if (device.is_cuda()) sizes.push_back(kGpuSize);
  for (const Size& size : sizes) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const test::UpdateRule& rule : test::update_rules()) {
        const std::string name = rule.name;
        if (name != "adamw") add_rule(name, rule, size, dtype, true, device);  // adamw has cases of its own
        if (name == "adamw") add_rule("adamw_no_master", rule, size, dtype, false, device);
      }
      add_packing("int8", BlockCode::int8, size, dtype, device);
      add_packing("fp8", BlockCode::e4m3, size, dtype, device);
    }
    add_compact(size, device);
  }
}

}  // namespace moelab::bench
