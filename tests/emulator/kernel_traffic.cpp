#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/rope_device.h"
#include "kernels/dense/embedding_device.h"
#include "kernels/dense/fp8_device.h"
#include "kernels/dense/rms_norm_device.h"
#include "kernels/dense/rms_norm_parts.h"
#include "kernels/formats/compact_format.h"
#include "kernels/formats/packed_blocks_device.h"
#include "kernels/formats/quantize.h"
#include "kernels/loss/linear_cross_entropy_device.h"
#include "kernels/moe/dispatch_device.h"
#include "kernels/moe/expert_variants.h"
#include "kernels/moe/gathered_products.h"
#include "kernels/moe/router_device.h"
#include "kernels/update/squared_norm_device.h"
#include "kernels/update/update_rules.h"
#include "tests/emulator/traffic.h"
#include "tests/emulator/traffic_tensors.h"

// Prints, as JSON, what our CUDA kernels move beside the least that their operator can, counted by the
// emulator: a line an operator. The least is every input read once and every output written once, without
// scratch and tables.
namespace moelab::emulator {
namespace {

using cuda::Element;
using bf16 = __nv_bfloat16;

void tell(const std::string& name, const char* source, const std::string& shape, Tensors& tensors,
          const std::function<void()>& work) {
  const traffic::Counts c = traffic::count(tensors.ranges(), work);
  std::printf(R"({"operator": "%s", "source": "%s", "shape": "%s", "least_bytes": %lld, "l2_bytes": %lld, )"
              R"("memory_bytes": %lld, "requests": %lld, "sectors": %lld, "least_sectors": %lld, )"
              R"("shared_requests": %lld, "shared_passes": %lld})"
              "\n",
              name.c_str(), source, shape.c_str(), static_cast<long long>(tensors.least()),
              32 * static_cast<long long>(c.of_blocks), 32 * static_cast<long long>(c.of_launches),
              static_cast<long long>(c.requests), static_cast<long long>(c.sectors),
              static_cast<long long>(c.least_sectors), static_cast<long long>(c.shared_requests),
              static_cast<long long>(c.shared_passes));
}

constexpr int64_t kTokens = 64, kChoices = 8, kRoutes = kTokens * kChoices, kExperts = 16, kWidth = 256;
const char* const kRows = "expert_rows.cu";

// A permutation that stands for rows grouped by expert.
std::vector<int32_t> shuffled_routes() {
  std::vector<int32_t> rows(kRoutes);
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), std::minstd_rand(1));
  return rows;
}

void expert_rows() {
  const std::string rows = "512 rows of 256 bf16", routes = "512 routes";
  {
    Tensors t;
    const int32_t* const row = t.ids(shuffled_routes());
    int32_t* const route = t.out<int32_t>(kRoutes);
    tell("invert_routes", kRows, routes, t,
         [&] { cuda::invert_routes(row, kRoutes, route, kRoutes, nullptr); });
  }
  {
    Tensors t;
    const auto* const from = t.in<bf16>(kTokens * kWidth);
    const int32_t* const route = t.ids(shuffled_routes());
    auto* const to = t.out<bf16>(kRoutes * kWidth);
    tell("gather_rows", kRows, rows + " of 64", t,
         [&] { cuda::gather_rows(from, route, kRoutes, kChoices, kWidth * 2, to, nullptr); });
  }
  {
    Tensors t;
    const auto* const from = t.in<bf16>(kRoutes * kWidth);
    const int32_t* const row = t.ids(shuffled_routes());
    const float* const weights = t.in<float>(kRoutes);
    auto* const to = t.out<bf16>(kTokens * kWidth);
    tell("combine_rows", kRows, rows + " to 64", t, [&] {
      cuda::combine_rows(Element::bf16, from, row, weights, kTokens, kChoices, kWidth, to, nullptr);
    });
  }
  {
    Tensors t;
    auto* const h = t.in<bf16>(kRoutes * 2 * kWidth);
    const int32_t* const route = t.ids(shuffled_routes());
    auto* const a = t.out<bf16>(kRoutes * kWidth);
    tell("swiglu", kRows, rows, t,
         [&] { cuda::swiglu(Element::bf16, h, route, kRoutes, kWidth, a, nullptr); });
  }
  {
    Tensors t;
    auto *const h = t.in_out<bf16>(kRoutes * 2 * kWidth), *const da = t.in_out<bf16>(kRoutes * kWidth);
    const int32_t* const route = t.ids(shuffled_routes());
    const float* const weights = t.in<float>(kRoutes);
    float* const dscale = t.out<float>(kRoutes);
    tell("swiglu_backward", kRows, rows, t, [&] {
      cuda::swiglu_backward(Element::bf16, h, da, route, weights, dscale, kRoutes, kWidth, nullptr);
    });
  }
  {
    Tensors t;
    const float* const dscale = t.in<float>(kRoutes);
    const int32_t* const row = t.ids(shuffled_routes());
    float* const dweights = t.out<float>(kRoutes);
    tell("gather_scales", kRows, routes, t,
         [&] { cuda::gather_scales(dscale, row, kRoutes, dweights, nullptr); });
  }
}

void products_by(const std::string& suffix, const char* source, const cuda::GatheredProducts& by) {
  const std::string shape = "512 rows of 256 bf16 of 64, 16 experts";
  std::vector<int32_t> begins(kExperts + 1);
  for (size_t e = 0; e < begins.size(); ++e) begins[e] = static_cast<int32_t>(e * kRoutes / kExperts);
  {
    Tensors t;
    const cuda::GroupedRows rows{t.in<bf16>(kTokens * kWidth), kWidth, t.ids(shuffled_routes()), kChoices};
    const auto* const matrices = t.in<bf16>(kExperts * kWidth * kWidth);
    const int32_t* const offsets = t.ids(begins);
    auto* const out = t.out<bf16>(kRoutes * kWidth);
    tell("multiply_rows" + suffix, source, shape, t, [&] {
      by.multiply_rows(Element::bf16, rows, matrices, true, offsets, kExperts, kRoutes, kWidth, out, nullptr);
    });
  }
  {
    Tensors t;
    const cuda::GroupedRows rows{t.in<bf16>(kRoutes * kWidth), kWidth, nullptr, kChoices},
        tokens{t.in<bf16>(kTokens * kWidth), kWidth, t.ids(shuffled_routes()), kChoices};
    const int32_t* const offsets = t.ids(begins);
    auto* const out = t.out<bf16>(kExperts * kWidth * kWidth);
    tell("multiply_columns" + suffix, source, shape, t,
         [&] { by.multiply_columns(Element::bf16, rows, tokens, offsets, kExperts, out, nullptr); });
  }
}

void products() {
  products_by("", "gathered_products.cu", cuda::warp_products);
  products_by("_on_hopper", "gathered_products_sm90a.cu", cuda::hopper_products);
}

void routing() {
  constexpr int64_t T = 512, K = 4, E = 64;
  std::vector<int32_t> chosen(T * K);
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<int32_t>(i * 7 % E);
  const std::string shape = "512 tokens, 4 of 64 experts";
  {
    Tensors t;
    const int32_t* const ids = t.ids(chosen);
    int32_t *const row = t.out<int32_t>(T * K), *const offsets = t.out<int32_t>(E + 1);
    int32_t* const scratch = t.scratch<int32_t>(cuda::dropless_scratch(T * K, E));
    tell("dropless_routes", "dispatch.cu", shape, t,
         [&] { cuda::dropless_routes(ids, T * K, E, scratch, row, offsets, nullptr); });
  }
  {
    Tensors t;
    const int32_t* const ids = t.ids(chosen);
    int32_t *const row = t.out<int32_t>(T * K), *const offsets = t.out<int32_t>(E + 1);
    float* const dropped = t.scratch<float>(1);
    tell("capacity_routes", "dispatch.cu", shape, t,
         [&] { cuda::capacity_routes(ids, 1, T * K, E, T * K / E, row, offsets, dropped, nullptr); });
  }
  const cuda::RouterShape router{T, T, E, K};
  {
    Tensors t;
    const cuda::RouterScores scores{t.in<float>(T * E), nullptr, false};
    const cuda::RouterOutputs out{t.out<float>(T), t.out<int32_t>(T * K), t.out<float>(T * K),
                                  t.out<float>(E), t.out<float>(E),       t.out<float>(1),
                                  t.out<float>(1)};
    double* const scratch = t.scratch<double>(cuda::router_scratch(router));
    tell("router_forward", "router.cu", shape, t,
         [&] { cuda::router_forward(scores, router, nullptr, false, true, scratch, out, nullptr); });
  }
  {
    Tensors t;
    const cuda::RouterScores scores{t.in<float>(T * E), nullptr, false};
    const float *const lse = t.in<float>(T), *const fraction = t.in<float>(E);
    const int32_t* const ids = t.ids(chosen);
    const cuda::RouterGradients gradients{t.in<float>(T * K), t.in<float>(1), t.in<float>(1), nullptr};
    float* const dlogits = t.out<float>(T * E);
    tell("router_backward", "router.cu", shape, t, [&] {
      cuda::router_backward(scores, router, lse, ids, fraction, true, gradients, dlogits, nullptr);
    });
  }
}

void dense() {
  constexpr int64_t R = 2048;
  const cuda::NormRows rows{R, kWidth, 1, 0, kWidth};
  const std::string shape = "2048 rows of 256 bf16";
  {
    Tensors t;
    const auto* const x = t.in<bf16>(R * kWidth);
    const float* const weight = t.in<float>(kWidth);
    auto* const y = t.out<bf16>(R * kWidth);
    float* const rstd = t.out<float>(R);
    tell("rms_norm_forward", "rms_norm.cu", shape, t,
         [&] { cuda::rms_norm_forward(Element::bf16, rows, x, weight, 1e-5, y, rstd, nullptr); });
  }
  {
    Tensors t;
    const auto *const grad = t.in<bf16>(R * kWidth), *const x = t.in<bf16>(R * kWidth);
    const float *const rstd = t.in<float>(R), *const weight = t.in<float>(kWidth);
    auto* const dx = t.out<bf16>(R * kWidth);
    const int64_t parts = cuda::rms_norm_parts(R);
    float* const partial = t.scratch<float>(parts * kWidth);
    float* const dweight = t.out<float>(kWidth);
    tell("rms_norm_backward", "rms_norm.cu", shape, t, [&] {
      cuda::rms_norm_backward(Element::bf16, rows, grad, x, rstd, weight, dx, partial, parts, dweight,
                              nullptr);
    });
  }
  {
    Tensors t;
    const auto* const x = t.in<bf16>(R * kWidth);
    auto* const codes = t.out<uint8_t>(R * kWidth);
    float* const scale = t.out<float>(R);
    tell("fp8_codes_of_rows", "fp8.cu", shape, t, [&] {
      cuda::fp8_codes_of_rows(Element::bf16, Fp8Format::e4m3, {R, kWidth, kWidth}, x, codes, scale, nullptr);
    });
  }
  {
    Tensors t;
    constexpr int64_t kParts = 16;
    const auto* const x = t.in<bf16>(R * kWidth);
    float* const maxima = t.scratch<float>(kParts * kWidth);
    auto* const codes = t.out<uint8_t>(R * kWidth);
    float* const scale = t.out<float>(kWidth);
    tell("fp8_codes_of_columns", "fp8.cu", shape, t, [&] {
      cuda::fp8_codes_of_columns(Element::bf16, Fp8Format::e4m3, {kWidth, R, kWidth}, x, maxima, kParts,
                                 codes, scale, nullptr);
    });
  }
  {
    Tensors t;
    constexpr int64_t kPositions = 128, kHeads = 4, kHead = 64;
    auto* const q = t.in_out<bf16>(kPositions * kHeads * kHead);
    const float* const table = t.in<float>(kPositions * kHead);
    tell("rope", "rope.cu", "128 positions, 4 heads of 64 bf16", t, [&] {
      cuda::rope(Element::bf16, q, table, {kPositions, kPositions, kHeads, kHeads, kHead}, 1, nullptr);
    });
  }
  {
    Tensors t;
    const auto* const weight = t.in<bf16>(kTokens * kWidth);
    int64_t* const ids = t.in<int64_t>(kTokens);
    std::iota(ids, ids + kTokens, 0);
    auto* const out = t.out<bf16>(kTokens * kWidth);
    tell("embedding", "embedding.cu", "64 rows of 256 bf16", t,
         [&] { cuda::embedding(weight, kTokens, ids, out, kTokens, kWidth * 2, nullptr); });
  }
}

void loss() {
  constexpr int64_t R = 64, V = 1024;
  const int64_t parts = cross_entropy_parts(V);
  Tensors t;
  CrossEntropyChunk c{};
  c.logits = t.in_out<bf16>(R * V);
  c.element = Element::bf16;
  c.gradient = true;
  c.vocabulary = V;
  c.tokens = R;
  c.targets = t.in<int64_t>(R);
  c.gradient_factor = t.in<double>(1);
  c.partial_max = t.scratch<float>(parts * R);
  c.partial_sum = t.scratch<float>(parts * R);
  for (float** const each : {&c.token_max, &c.token_scale, &c.token_target}) *each = t.scratch<float>(R);
  c.row_loss = t.out<double>(R);
  tell("cross_entropy_chunk", "linear_cross_entropy.cu", "64 tokens, vocabulary of 1024, bf16", t,
       [&] { cuda::cross_entropy_chunk(c, nullptr); });
}

void formats() {
  constexpr int64_t kCount = 1 << 14, kBlocks = kCount / kQuantBlock;
  const std::string shape = "16384 bf16 in blocks of 256";
  {
    Tensors t;
    const auto* const x = t.in<bf16>(kCount);
    float* const absmax = t.out<float>(kBlocks);
    uint8_t* const bytes = t.out<uint8_t>(kCount);
    tell("pack_blocks", "packed_blocks.cu", shape, t, [&] {
      cuda::pack_blocks(Element::bf16, x, kCount, kQuantBlock, BlockCode::int8, absmax, bytes, nullptr);
    });
  }
  {
    Tensors t;
    const float* const absmax = t.in<float>(kBlocks);
    const uint8_t* const bytes = t.in<uint8_t>(kCount);
    auto* const x = t.out<bf16>(kCount);
    tell("unpack_blocks", "packed_blocks.cu", shape, t, [&] {
      cuda::unpack_blocks(Element::bf16, absmax, bytes, kCount, kQuantBlock, BlockCode::int8, x, nullptr);
    });
  }
}

constexpr int64_t kElements = 1 << 14;
const char* const kUpdated = "16384 weights";
constexpr AdamWFactors kFactors{0.999f, 1e-3f, 0.9f, 0.95f, 0.1f, 0.05f, 1, 1e-8f, 1};

// An update rule's step on fp32 weights and gradients.
void rule(const char* name, const char* source, Tensors& t,
          const std::function<void(const cuda::WeightPointers&, const cuda::GradientPointer&)>& step) {
  const cuda::WeightPointers weights{.fp32 = t.in_out<float>(kElements)};
  const cuda::GradientPointer gradient{t.in<float>(kElements), Element::f32};
  tell(name, source, kUpdated, t, [&] { step(weights, gradient); });
}

void moments() {
  {
    Tensors t;
    float *const m = t.in_out<float>(kElements), *const v = t.in_out<float>(kElements);
    rule("adamw", "adamw.cu", t, [&](const auto& weights, const auto& gradient) {
      cuda::adamw(weights, gradient, m, v, false, 0, kElements, kFactors, {}, nullptr);
    });
  }
  {
    Tensors t;
    float *const m = t.in_out<float>(kElements), *const v = t.in_out<float>(64);
    rule("adam_mini", "adam_mini.cu", t, [&](const auto& weights, const auto& gradient) {
      cuda::adam_mini(weights, gradient, m, v, {64, kElements / 64, 0, 0}, kFactors, {}, nullptr);
    });
  }
  {
    Tensors t;
    float* const m = t.in_out<float>(kElements);
    const MomentumFactors factors{0.999f, 1e-3f, 0.9f, 0.99f, 0.1f, 0.01f, 1};
    rule("momentum_step", "momentum_step.cu", t, [&](const auto& weights, const auto& gradient) {
      cuda::momentum_step(true, weights, gradient, m, kElements, factors, {}, nullptr);
    });
  }
  {
    Tensors t;
    const cuda::FactoredShape shape{1, 64, kElements / 64};
    float *const row = t.in_out<float>(shape.rows), *const column = t.in_out<float>(shape.columns);
    double* const scratch = t.scratch<double>(shape.scratch());
    rule("adafactor", "adafactor.cu", t, [&](const auto& weights, const auto& gradient) {
      cuda::adafactor(weights, gradient, row, column, scratch, shape, {0.9f, 1, 0.999f, 1e-3f}, {}, nullptr);
    });
  }
}

cuda::MapPointers map_in(Tensors& t, const DynamicMap& map) {
  float* const value = t.scratch<float>(256);
  int32_t* const bin = t.scratch<int32_t>(static_cast<int64_t>(map.bin.size()));
  std::copy(map.value.begin(), map.value.end(), value);
  std::copy(map.bin.begin(), map.bin.end(), bin);
  return {value, bin};
}

void coded_moments() {
  {
    Tensors t;
    uint8_t *const m = t.in_out<uint8_t>(kElements), *const v = t.in_out<uint8_t>(kElements);
    float *const m_absmax = t.in_out<float>(kElements / kQuantBlock), *const v_absmax = t.in_out<float>(
                                                                          kElements / kQuantBlock);
    const cuda::MapPointers first = map_in(t, signed_dynamic_map()),
                            second = map_in(t, unsigned_dynamic_map());
    rule("adam8bit", "adam8bit.cu", t, [&](const auto& weights, const auto& gradient) {
      cuda::adam8bit(weights, gradient, m, m_absmax, v, v_absmax, first, second, kElements, kFactors, {},
                     nullptr);
    });
  }
  {
    Tensors t;
    auto* const m = t.in_out<int8_t>(kElements);
    auto* const v = t.in_out<uint8_t>(kElements);
    auto *const m_scale = t.in_out<uint16_t>(kElements / kCompactGroup), *const v_scale = t.in_out<uint16_t>(
                                                                             kElements / kCompactGroup);
    rule("adamw_compact", "adamw_compact.cu", t, [&](const auto& weights, const auto& gradient) {
      cuda::adamw_compact(weights.fp32, nullptr, gradient, m, m_scale, v, v_scale, kElements, kFactors, {},
                          nullptr);
    });
  }
  Tensors t;
  constexpr int64_t kMany = 1 << 16;
  const float* const x = t.in<float>(kMany);
  double *const scratch = t.scratch<double>(cuda::norm_scratch(kMany)), *const sum = t.out<double>(1);
  tell("squared_norm", "squared_norm.cu", "65536 fp32", t,
       [&] { cuda::squared_norm(x, Element::f32, kMany, scratch, sum, nullptr); });
}

}  // namespace
}  // namespace moelab::emulator

int main() {
  using namespace moelab::emulator;
  expert_rows();
  products();
  routing();
  dense();
  loss();
  formats();
  moments();
  coded_moments();
  return 0;
}
