#include "moe/kv_cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "moe/transformer.h"
#include "tests/moe/enlarge.h"
#include "tests/moe/logits_tolerance.h"

namespace moelab {
namespace {

using test::enlarge;

constexpr int64_t kBatch = 2, kPositions = 24;

ModelSettings base() {
  ModelSettings m;
  m.vocab = 67;
  m.d_model = 32;
  m.layers = 3;
  m.heads = 4;
  m.d_expert = 40;
  return m;
}

at::Tensor made_up_tokens(const ModelSettings& m) {
  at::manual_seed(11);
  return at::randint(m.vocab, {kBatch, kPositions}, at::kLong);
}

// The logits after each piece of the text, pieces of the given lengths.
std::vector<at::Tensor> read_in_pieces(Transformer& model, KvCache& cache, const at::Tensor& tokens,
                                       const std::vector<int64_t>& pieces) {
  DirectRunner direct;
  std::vector<at::Tensor> logits;
  int64_t first = cache.length();
  for (const int64_t length : pieces) {
    logits.push_back(model.next_logits(tokens.narrow(1, first, length), cache, direct));
    first += length;
  }
  return logits;
}

struct ModelCase {
  const char* name;
  std::function<void(ModelSettings&)> change;
  at::ScalarType compute = at::kFloat;
  AttentionSettings attention = {};
};

class CachedForward : public ::testing::TestWithParam<ModelCase> {};

// Whole, a token at a time, a prompt and then tokens, uneven pieces: the logits behind each piece are those
// of the forward pass that knows no cache.
TEST_P(CachedForward, LogitsAreTheUncachedOnesAtEveryPosition) {
  ModelSettings m = base();
  GetParam().change(m);
  TransformerOptions options;
  options.compute = GetParam().compute;
  Transformer model(m, GetParam().attention, options);
  enlarge(model);
  const at::Tensor tokens = made_up_tokens(m);
  at::NoGradGuard no_grad;
  DirectRunner direct;
  const at::Tensor want = model.logits(tokens, direct);
  const test::Tolerance allowed = test::logits_tolerance(m, kPositions, options.compute);

  std::vector<int64_t> prompt_then_tokens(kPositions - 9, 1);
  prompt_then_tokens.front() = 10;
  for (const auto& pieces : {std::vector<int64_t>(kPositions, 1), prompt_then_tokens,
                             std::vector<int64_t>{5, 1, 6, 12}, std::vector<int64_t>{kPositions}}) {
    KvCache cache(m, kBatch, kPositions, options.compute, at::kCPU);
    const std::vector<at::Tensor> got = read_in_pieces(model, cache, tokens, pieces);
    int64_t end = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      end += pieces[i];
      EXPECT_TRUE(test::close_to(got[i], want.select(1, end - 1), allowed))
          << "after position " << end - 1 << " of " << pieces.size() << " pieces";
    }
    EXPECT_EQ(cache.length(), kPositions);
  }
}

// In bf16 a rounding may decide between two experts, so its cases have no choice to make.
INSTANTIATE_TEST_SUITE_P(
    Variants, CachedForward,
    ::testing::Values(ModelCase{"as_many_key_heads", [](ModelSettings&) {}},
                      ModelCase{"grouped_queries", [](ModelSettings& m) { m.kv_heads = 2; }},
                      ModelCase{"one_key_head", [](ModelSettings& m) { m.kv_heads = 1; }},
                      ModelCase{"materialised",
                                [](ModelSettings& m) { m.kv_heads = 2; },
                                at::kFloat,
                                {AttentionKernel::materialised}},
                      ModelCase{"sliding_window",
                                [](ModelSettings& m) { m.kv_heads = 2; },
                                at::kFloat,
                                {.kernel = AttentionKernel::sliding_window, .window = 5}},
                      ModelCase{
                          "block_sparse",
                          [](ModelSettings& m) { m.kv_heads = 2; },
                          at::kFloat,
                          {.kernel = AttentionKernel::block_sparse, .block_size = 4, .local_blocks = 2}},
                      ModelCase{"qk_norm_head", [](ModelSettings& m) { m.qk_norm = QkNorm::head; }},
                      ModelCase{"qk_norm_full",
                                [](ModelSettings& m) {
                                  m.qk_norm = QkNorm::full;
                                  m.kv_heads = 2;
                                }},
                      ModelCase{"clip_qkv", [](ModelSettings& m) { m.clip_qkv = 0.7; }},
                      ModelCase{"own_head_dim", [](ModelSettings& m) { m.head_dim = 12; }},
                      ModelCase{"trained_with_drops", [](ModelSettings& m) { m.capacity_factor = 0.5; }},
                      ModelCase{"trained_onehot",
                                [](ModelSettings& m) {
                                  m.dispatch = Dispatch::onehot;
                                  m.capacity_factor = 0.5;
                                }},
                      ModelCase{"sigmoid", [](ModelSettings& m) { m.router = RouterKind::sigmoid; }},
                      ModelCase{"shared_untied",
                                [](ModelSettings& m) {
                                  m.shared_experts = 1;
                                  m.tie_embeddings = false;
                                }},
                      ModelCase{"dense", [](ModelSettings& m) { m.experts = 0; }},
                      ModelCase{"bf16_dense",
                                [](ModelSettings& m) {
                                  m.experts = 0;
                                  m.kv_heads = 2;
                                },
                                at::kBFloat16},
                      ModelCase{"bf16_sliding_window",
                                [](ModelSettings& m) {
                                  m.experts = 0;
                                  m.head_dim = 32;
                                },
                                at::kBFloat16,
                                {.kernel = AttentionKernel::sliding_window, .window = 5}},
                      ModelCase{"bf16_all_experts", [](ModelSettings& m) { m.experts_per_token = m.experts; },
                                at::kBFloat16}),
    [](const auto& info) { return std::string(info.param.name); });

// With weights this large a token sees the difference of one position, so the cases above mean something.
TEST(CachedForward, AnotherWindowIsAnotherModel) {
  const ModelSettings m = base();
  const auto logits = [&](int64_t window) {
    Transformer model(m, {.kernel = AttentionKernel::sliding_window, .window = window}, {});
    enlarge(model);
    at::NoGradGuard no_grad;
    DirectRunner direct;
    return model.logits(made_up_tokens(m), direct);
  };
  const test::Tolerance allowed = test::logits_tolerance(m, kPositions, at::kFloat);
  EXPECT_TRUE(test::close_to(logits(kPositions), logits(kPositions + 9), allowed));
  EXPECT_FALSE(test::close_to(logits(5), logits(6), allowed));
}

TEST(KvCache, ForgetsWhatIsTruncated) {
  const ModelSettings m = base();
  Transformer model(m, {}, {});
  enlarge(model);
  const at::Tensor tokens = made_up_tokens(m), others = (tokens + 1).remainder(m.vocab);
  KvCache fresh(m, kBatch, kPositions, at::kFloat, at::kCPU),
      used(m, kBatch, kPositions, at::kFloat, at::kCPU);
  read_in_pieces(model, fresh, tokens, {8});
  read_in_pieces(model, used, tokens, {8});
  read_in_pieces(model, used, others, {5, 1});
  used.truncate(8);
  EXPECT_EQ(used.length(), 8);
  EXPECT_TRUE(test::bitwise_equal(read_in_pieces(model, used, tokens, {4}).back(),
                                  read_in_pieces(model, fresh, tokens, {4}).back()));
}

TEST(KvCache, TakesTheBytesOfItsFormula) {
  install_allocators();
  ModelSettings m = base();
  m.kv_heads = 2;
  const auto held = [] { return cpu_ledger().by_kind()[static_cast<size_t>(Kind::kv_cache)]; };
  const int64_t before = held();
  {
    const KvCache cache(m, 5, 100, at::kBFloat16, at::kCPU);
    EXPECT_EQ(held() - before, 2 * 3 * 5 * 100 * 2 * 8 * 2);
    EXPECT_EQ(held() - before, KvCache::bytes(m, 5, 100, at::kBFloat16));
    EXPECT_EQ(cache.positions(), 100);
    EXPECT_EQ(cache.length(), 0);
  }
  EXPECT_EQ(held(), before);
}

TEST(KvCache, RefusesWhatDoesNotFit) {
  ModelSettings m = base();
  Transformer model(m, {}, {});
  KvCache cache(m, kBatch, 10, at::kFloat, at::kCPU);
  const at::Tensor tokens = made_up_tokens(m);
  read_in_pieces(model, cache, tokens, {9});
  EXPECT_THROW(read_in_pieces(model, cache, tokens, {2}), c10::Error);
  cache.truncate(9);
  EXPECT_THROW(read_in_pieces(model, cache, tokens.narrow(0, 0, 1), {1}), c10::Error);
  EXPECT_THROW(cache.truncate(10), c10::Error);
  m.router = RouterKind::expert_choice;
  EXPECT_THROW(KvCache(m, 1, 10, at::kFloat, at::kCPU), UserError);
}

}  // namespace
}  // namespace moelab
