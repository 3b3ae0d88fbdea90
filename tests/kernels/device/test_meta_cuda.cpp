#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>

#include "kernels/attention/attention.h"
#include "kernels/attention/document_attention.h"
#include "kernels/dense/embedding.h"
#include "kernels/dense/fp8.h"
#include "kernels/dense/linear.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/aten_meta.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/moe/expert_block.h"
#include "kernels/moe/grouped_products.h"
#include "kernels/moe/router.h"
#include "kernels/operator/variants.h"
#include "kernels/update/squared_norm.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/expert_block.h"
#include "tests/kernels/reference.h"

// Bytes that operators hold while meta stands for CUDA, compared with the sizes of what their CUDA sides
// allocate, and with a GPU.
namespace moelab {
namespace {

using at::Tensor;
using test::MoeCase;
const c10::Device kGpu(c10::kCUDA, 0), kMetaDevice(c10::kMeta);

// The peak while `run` lasts, in addition to what was held before.
template <class Run>
int64_t peak_of(c10::Device device, const Run& run) {
  install_allocators();
  install_meta_kernels();
  const int64_t before = device_memory(device).allocated;
  reset_peaks(device);
  run();
  return device_memory(device).peak - before;
}

// The peak of forward and backward in bf16.
int64_t expert_block_peak(c10::Device device, const MoeCase& c) {
  install_allocators();
  const test::MoeInput in = make_input(c, at::kBFloat16);
  const auto leaf = [&](const Tensor& t) { return t.to(device).detach().requires_grad_(); };
  const Tensor x = leaf(in.x), weights = leaf(in.weights), w13 = leaf(in.w13), w2 = leaf(in.w2),
               dy = in.dy.to(device);
  Routes routes = in.routes;
  routes.row_TK = routes.row_TK.to(device);
  routes.offsets_E1 = routes.offsets_E1.to(device);
  return peak_of(device,
                 [&] { torch::autograd::backward({expert_block(x, weights, routes, w13, w2)}, {dy}); });
}

const MoeCase kDropless{"", 2, 64, 32, 4, 2, 48, 0}, kCapacity{"", 2, 64, 32, 4, 2, 48, 1.25},
    kManyRows{"", 2, 256, 32, 4, 2, 48, 0};  // more rows a weight: the peak is where rows have been copied

// The variant of the products over experts, until the scope ends.
class ProductsScope {
 public:
  explicit ProductsScope(const char* variant) : before_(expert_products.chosen()) {
    expert_products.choose(expert_products.index_of(variant));
  }
  ~ProductsScope() { expert_products.choose(before_); }
  ProductsScope(const ProductsScope&) = delete;
  ProductsScope& operator=(const ProductsScope&) = delete;

 private:
  size_t before_;
};

TEST(SimulatedCuda, ExpertBlockHoldsRowsOfAllExperts) {
  for (const MoeCase& c : {kDropless, kManyRows, kCapacity}) {
    const int64_t T = c.tokens(), R = c.rows(), weight = 2 * c.E * c.D * c.F;
    const int64_t y = 2 * T * c.D, wide = 2 * R * c.D, act = 2 * R * c.F, h = 2 * act;
    const int64_t forward = 4 * R + h + act + wide + y;
    // `copied`: of the rows of dy
    const auto backward = [&](int64_t copied) {
      return y + h + 8 * R + 4 * T * c.K + std::max(copied + act + weight, 3 * weight + wide + y);
    };
    const int64_t as_cpu = expert_block_peak(kMetaDevice, c);
    {
      const SimulatedDevice gpu(c10::kCUDA);
      EXPECT_EQ(expert_block_peak(kMetaDevice, c), std::max(forward, backward(wide)));
      const bool gathers = c.capacity_factor == 0;
      for (const char* const variant : {"gathered", "hopper"}) {
        const ProductsScope chosen(variant);
        EXPECT_EQ(expert_block_peak(kMetaDevice, c), std::max(forward, backward(gathers ? 0 : wide)));
      }
    }
    EXPECT_EQ(expert_block_peak(kMetaDevice, c), as_cpu);
    EXPECT_FALSE(meta_is_cuda());
  }
}

TEST(SimulatedCuda, ExpertBlockIsPredictedOnAGpu) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  for (const double capacity_factor : {0.0, 1.25}) {
    const MoeCase c{"", 2, 2048, 1024, 8, 2, 1024, capacity_factor};
    expert_block_peak(kGpu, c);  // makes the workspaces that LibTorch makes once
    const auto measured = static_cast<double>(expert_block_peak(kGpu, c));
    const SimulatedDevice gpu(c10::kCUDA);
    EXPECT_NEAR(static_cast<double>(expert_block_peak(kMetaDevice, c)) / measured, 1, 0.03)
        << capacity_factor;
  }
}

int64_t predicted_peak(const MoeCase& c) {
  const SimulatedDevice gpu(c10::kCUDA);
  return expert_block_peak(kMetaDevice, c);
}

// What the variants hold more or less than the plain ones: LibTorch's allocator rounds sizes. Its grouped
// product has a workspace of CUTLASS's on Hopper, of 59 to 67 KiB on an H200, which no prediction counts.
TEST(SimulatedCuda, ExpertBlockIsPredictedWithEveryVariant) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  constexpr int64_t kWorkspace = 128 << 10;
  const KernelChoice before = kernels_in_use();
  for (const MoeCase& c : {kDropless, kManyRows, kCapacity}) {
    use_kernels({});
    expert_block_peak(kGpu, c);  // makes the workspaces that LibTorch makes once
    const int64_t held = expert_block_peak(kGpu, c), predicted = predicted_peak(c);
    for (VariedOperator* const op : varied_operators()) {
      for (size_t v = 0; v < op->variants().size(); ++v) {
        use_kernels({{op->name(), op->variants()[v]}});
        const int64_t more = expert_block_peak(kGpu, c) - held, expected = predicted_peak(c) - predicted;
        EXPECT_GE(more, expected) << op->name() << " " << op->variants()[v];
        EXPECT_LE(more, expected + (op->variants()[v] == std::string("grouped") ? kWorkspace : 0))
            << op->name() << " " << op->variants()[v];
      }
    }
  }
  use_kernels(before);
}

Tensor meta(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
  install_allocators();
  return at::empty(sizes, at::TensorOptions(c10::kMeta).dtype(type));
}

TEST(SimulatedCuda, LinearPacksNothing) {
  const SimulatedDevice gpu(c10::kCUDA);
  const Tensor x = meta({128, 64}), w = meta({96, 64});
  EXPECT_EQ(peak_of(kMetaDevice, [&] { moelab::linear(x, w); }), 2 * 128 * 96);
}

// A product holds the codes and scales of both factors, and its result. The codes of a row are padded to
// whole 16 bytes. A factor with contiguous columns is read in parts, and holds the largest magnitude of each
// part.
TEST(SimulatedCuda, Fp8ProductsHoldTheirFactorsCodes) {
  const SimulatedDevice gpu(c10::kCUDA);
  constexpr int64_t M = 128, K = 64, N = 32, T = 5000, padded = 5008, parts = 32;
  const Tensor x = meta({M, K}), w = meta({N, K});
  EXPECT_EQ(peak_of(kMetaDevice, [&] { fp8_linear(x, w); }), (M + N) * (K + 4) + 2 * M * N);
  const Tensor dy = meta({T, N}), rows = meta({T, K});
  EXPECT_EQ(peak_of(kMetaDevice, [&] { fp8_mm(dy.t(), Fp8Format::e5m2, rows); }),
            (N + K) * (padded + 4) + 4 * parts * K);
}

TEST(SimulatedCuda, Fp8FactorsArePredictedOnAGpu) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  for (const bool transposed : {false, true}) {
    const auto peak_on = [&](c10::Device device) {
      const Tensor x = at::ones({3000, 1000}, at::TensorOptions(device).dtype(at::kBFloat16));
      const Tensor factor = transposed ? x.t() : x;
      return peak_of(device, [&] { fp8_factors(factor, Fp8Format::e5m2, factor.t()); });
    };
    const auto measured = static_cast<double>(peak_on(kGpu));
    const SimulatedDevice gpu(c10::kCUDA);
    EXPECT_NEAR(static_cast<double>(peak_on(kMetaDevice)) / measured, 1, 0.01) << transposed;
  }
}

// With `longest`: rows of documents of at most that many tokens.
int64_t attention_peak(c10::Device device, at::ScalarType type, int64_t S, int64_t heads, int64_t kv_heads,
                       int64_t hd, std::optional<int64_t> longest = {}) {
  install_allocators();
  install_meta_kernels();
  const auto options = at::TensorOptions(device).dtype(type);
  const Tensor qkv = at::zeros({2, S, heads + 2 * kv_heads, hd}, options).requires_grad_(),
               dy = at::zeros({2, S, heads * hd}, options);
  Tensor documents;
  DocumentStarts starts;
  if (longest) {
    const Tensor rows = at::arange(S, at::kInt).div_(*longest, "floor").mul_(*longest).repeat({2, 1});
    documents = rows.to(device);
    starts.longest = *longest;
    if (type != at::kFloat) starts = document_starts(documents, *longest, document_room(rows, *longest));
  }
  return peak_of(device, [&] {
    torch::autograd::backward(
        {causal_attention(qkv, heads, kv_heads, AttentionPath::flash, {}, documents, starts)}, {dy});
  });
}

// The result, its logsumexp, the gradient, the library's dq, dk and dv, and what those are summed in.
TEST(SimulatedCuda, FlashSumsDqInFp32) {
  const SimulatedDevice gpu(c10::kCUDA);
  constexpr int64_t S = 200, H = 4, K = 2, hd = 40;
  const int64_t out = 2 * 2 * S * H * hd, lse = 4 * 2 * S * H, dqkv = 2 * 2 * S * (H + 2 * K) * hd;
  EXPECT_EQ(attention_peak(kMetaDevice, at::kBFloat16, S, H, K, hd),
            out + lse + 2 * dqkv + 4 * 2 * H * 256 * (64 + 1) + 2 * out);
}

// Each document, and each that there is room for, has 128 rows of sums to itself.
TEST(SimulatedCuda, DocumentsHaveRowsOfDqToThemselves) {
  const SimulatedDevice gpu(c10::kCUDA);
  constexpr int64_t S = 300, H = 4, K = 2, hd = 40, room = 8;
  const int64_t out = 2 * 2 * S * H * hd, lse = 4 * 2 * S * H, dqkv = 2 * 2 * S * (H + 2 * K) * hd;
  EXPECT_EQ(attention_peak(kMetaDevice, at::kBFloat16, S, H, K, hd, 100),
            out + lse + 2 * dqkv + 4 * H * (2 * S + 128 * room) * (64 + 1) + 2 * out);
}

// A window is the flash kernel's own, and holds what attention over the whole sequence holds; blocks are not.
TEST(SimulatedCuda, WindowsHoldNoBands) {
  const SimulatedDevice gpu(c10::kCUDA);
  const auto peak = [](AttentionSpan span, at::ScalarType type = at::kBFloat16) {
    const Tensor qkv = meta({2, 1000, 4 + 2 * 2, 64}, type).requires_grad_(),
                 dy = meta({2, 1000, 4 * 64}, type);
    return peak_of(kMetaDevice, [&] {
      torch::autograd::backward({causal_attention(qkv, 4, 2, AttentionPath::flash, span)}, {dy});
    });
  };
  EXPECT_EQ(peak({1, 100}), peak({}));
  EXPECT_NE(peak({50, 2}), peak({}));
  EXPECT_NE(peak({1, 100}, at::kFloat), peak({}, at::kFloat));
}

// No library kernel takes heads of 24 bytes; 100 queries are one band.
TEST(SimulatedCuda, BandsHoldTheirScores) {
  const SimulatedDevice gpu(c10::kCUDA);
  constexpr int64_t S = 100, H = 4, K = 2, hd = 6;
  const int64_t out = 4 * 2 * S * H * hd, lse = 4 * 2 * S * H, dqkv = 4 * 2 * S * (H + 2 * K) * hd;
  EXPECT_EQ(attention_peak(kMetaDevice, at::kFloat, S, H, K, hd),
            out + lse + dqkv + 4 * 2 * K * S * hd + 4 * (2 * S * S * H + 3 * S * H * hd));
}

// A band of 128 queries, whose first query sees 49 keys before its own.
TEST(SimulatedCuda, BandsOfDocumentsAreAsLongAsTheLongest) {
  const SimulatedDevice gpu(c10::kCUDA);
  constexpr int64_t S = 300, H = 4, K = 2, hd = 8, keys = 49 + 128;
  const int64_t out = 4 * 2 * S * H * hd, lse = 4 * 2 * S * H, dqkv = 4 * 2 * S * (H + 2 * K) * hd;
  EXPECT_EQ(attention_peak(kMetaDevice, at::kFloat, S, H, K, hd, 50),
            out + lse + dqkv + 4 * 2 * K * S * hd + 4 * (2 * keys * 128 * H + 3 * 128 * H * hd));
}

// CUDA's softmax holds the product of its result and gradient beside both, which is the peak there. The CPU's
// comes later, with one tensor of heads more.
TEST(SimulatedCuda, TheTextbooksScoresAreThereOnceMore) {
  constexpr int64_t B = 2, S = 512, H = 4, hd = 64;
  const auto peak = [] {
    const Tensor qkv = meta({B, S, 3 * H, hd}, at::kFloat).requires_grad_(),
                 dy = meta({B, S, H * hd}, at::kFloat);
    return peak_of(kMetaDevice, [&] {
      torch::autograd::backward({causal_attention(qkv, H, H, AttentionPath::materialised)}, {dy});
    });
  };
  const int64_t as_cpu = peak();
  const SimulatedDevice gpu(c10::kCUDA);
  EXPECT_EQ(peak() - as_cpu, 4 * B * H * S * (S - hd));
}

TEST(SimulatedCuda, AttentionIsPredictedOnAGpu) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  for (const std::optional<int64_t> longest : {std::optional<int64_t>(), {256}}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const auto peak_on = [&](c10::Device device) {
        return static_cast<double>(attention_peak(device, type, 512, 16, 4, 128, longest));
      };
      peak_on(kGpu);
      const double measured = peak_on(kGpu);
      const SimulatedDevice gpu(c10::kCUDA);
      EXPECT_NEAR(peak_on(kMetaDevice) / measured, 1, 0.03) << type << " " << longest.has_value();
    }
  }
}

TEST(SimulatedCuda, CrossEntropysChunksAreLargerAndBounded) {
  constexpr int64_t T = 4096, D = 768, V = 50304;
  EXPECT_EQ(linear_cross_entropy_chunk(T, V, 2, true, D), 688);
  const SimulatedDevice gpu(c10::kCUDA);
  const Tensor x = meta({T, D}).requires_grad_(), weight = meta({V, D}).requires_grad_(),
               targets = meta({T}, at::kLong);
  const int64_t peak = peak_of(kMetaDevice, [&] { linear_cross_entropy(x, weight, targets).backward(); });
  EXPECT_LE(peak - (4 * V * D + 2 * T * D), 2 * V * D + (1 << 20));
}

// Up to 3072 ids: the terms and the sum in fp32. For more: sorted ids, their positions and partial sums.
TEST(SimulatedCuda, EmbeddingsSumInFp32) {
  const SimulatedDevice gpu(c10::kCUDA);
  constexpr int64_t D = 64, V = 1000;
  const auto peak = [&](int64_t T) {
    const Tensor weight = meta({V, D}).requires_grad_(), tokens = meta({T}, at::kLong), dy = meta({T, D});
    return peak_of(kMetaDevice,
                   [&] { torch::autograd::backward({moelab::embedding(weight, tokens)}, {dy}); });
  };
  const int64_t dweight = 2 * V * D, y = 2 * D;
  EXPECT_EQ(peak(100), 100 * (y + 4 * D) + 3 * dweight);
  EXPECT_EQ(peak(4096), 4096 * (y + 16) + 4 * (409 + V) * D + dweight);
}

// The peak of forward and backward.
int64_t router_peak(int64_t T, int64_t D, int64_t E, int64_t K) {
  const Tensor x = meta({T, D}).requires_grad_(), w = meta({E, D}, at::kFloat).requires_grad_();
  const Tensor dweights = meta({T, K}, at::kFloat);
  return peak_of(kMetaDevice, [&] {
    const RouterOutput out = route(x, w, std::nullopt, std::nullopt, {.top_k = K, .sequence = T});
    torch::autograd::backward({out.weights_TK}, {dweights});
  });
}

// What grows with the width: the gradient of the tokens in bf16, the gradient of the weight, and the rows in
// fp32.
TEST(SimulatedCuda, ThePlainRouterConverts64MiBAtATime) {
  constexpr int64_t D = 256, E = 8, K = 2, kRows = (64 << 20) / (4 * D);
  const SimulatedDevice gpu(c10::kCUDA);
  const KernelChoice before = kernels_in_use();
  use_kernels({});
  for (const int64_t T : {int64_t{100}, int64_t{4096}, 2 * kRows + 5}) {
    const auto converted = [&](int64_t width) { return 4 * width * std::min(T, kRows * D / width); };
    EXPECT_EQ(router_peak(T, 2 * D, E, K) - router_peak(T, D, E, K),
              D * (2 * T + 4 * E) + converted(2 * D) - converted(D));
  }
  use_kernels(before);
}

TEST(SimulatedCuda, ANormHoldsASumForEachChunk) {
  const SimulatedDevice gpu(c10::kCUDA);
  for (const int64_t n : {1000, 5 << 20}) {
    const Tensor x = meta({n});
    EXPECT_EQ(peak_of(kMetaDevice, [&] { squared_norm(x); }), 8 * ((n + (1 << 14) - 1) / (1 << 14) + 1));
  }
}

TEST(SimulatedCuda, ANormsWeightGradientHasAPartForEachBlockOfThreads) {
  constexpr int64_t D = 64;
  const auto backward_peak = [](int64_t rows) {
    const Tensor x = meta({rows, D}).requires_grad_(), dy = meta({rows, D}),
                 weight = meta({D}, at::kFloat).requires_grad_(), y = rms_norm(x, weight, 1e-6);
    return peak_of(kMetaDevice, [&] { torch::autograd::backward({y}, {dy}); });
  };
  const SimulatedDevice gpu(c10::kCUDA);
  for (const auto& [rows, parts] : {std::pair<int64_t, int64_t>{6, 2}, {1000, 250}, {5000, 1024}})
    EXPECT_EQ(backward_peak(rows), 2 * D * rows + 4 * D * (1 + parts));
}

// Three chunks and five slabs; on a GPU the cases of other tests are too small for that.
TEST(CrossEntropyCuda, SumsOverChunks) {
  MOELAB_NEEDS_CUDA();
  constexpr int64_t T = 1100, D = 512, V = 50021;
  at::manual_seed(5);
  const Tensor x = at::randn({T, D}).to(at::kBFloat16), weight = (at::randn({V, D}) / 23).to(at::kBFloat16),
               targets = at::randint(V, {T}, at::kLong);
  const auto gradients = [&](c10::Device device) {
    const Tensor x_there = x.to(device).detach().requires_grad_(),
                 weight_there = weight.to(device).detach().requires_grad_();
    torch::autograd::backward({linear_cross_entropy(x_there, weight_there, targets.to(device))}, {});
    return std::vector{x_there.grad().cpu(), weight_there.grad().cpu()};
  };
  const auto want = gradients(at::kCPU), got = gradients(kGpu);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(test::close_to(got[i], want[i], 1e-2, 1)) << i;
}

}  // namespace
}  // namespace moelab
