#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>

#include "kernels/dense/product.h"
#include "moe/kv_cache.h"
#include "moe/transformer.h"
#include "tests/moe/small_model.h"

// Training and generation in 16 bits, watched for LibTorch's products of 16-bit types: on a CPU without such
// products they are scalar loops. On a CPU that multiplies bf16 the tests of fp16 still watch every path.
namespace moelab {
namespace {

const std::set<std::string> kProducts = {"aten::mm",
                                         "aten::addmm",
                                         "aten::bmm",
                                         "aten::baddbmm",
                                         "aten::mv",
                                         "aten::addmv",
                                         "aten::dot",
                                         "aten::_scaled_dot_product_flash_attention_for_cpu",
                                         "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};

// While one lives, notes LibTorch's products of 16-bit tensors on any thread.
class Watch {
 public:
  Watch() {
    seen().clear();
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(note).needsInputs(true));
  }
  ~Watch() { at::removeCallback(handle_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static std::string text() {
    std::string all;
    for (const std::string& name : seen()) all += name + " ";
    return all;
  }

 private:
  static std::set<std::string>& seen() {
    static std::set<std::string> names;
    return names;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    static std::mutex mutex;
    if (!kProducts.contains(function.name())) return nullptr;
    for (const c10::IValue& input : function.inputs()) {
      if (!input.isTensor() || input.toTensor().element_size() != 2) continue;
      const std::lock_guard lock(mutex);
      seen().insert(function.name());
    }
    return nullptr;
  }
  at::CallbackHandle handle_;
};

class HalfProducts : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!multiplies_as_fp32(at::empty({0}, GetParam()))) {
      GTEST_SKIP() << "the CPU that this is built for multiplies " << GetParam();
    }
  }

  static void train(const ModelSettings& m, const AttentionSettings& attention) {
    Transformer model(m, attention, {.compute = GetParam()});
    DirectRunner direct;
    const at::Tensor tokens = at::randint(0, m.vocab, {2, 65}, at::kLong);
    const LossParts parts = model.forward(tokens.narrow(1, 0, 64).contiguous(),
                                          tokens.narrow(1, 1, 64).contiguous(), true, direct);
    model.objective(parts).backward();
    EXPECT_TRUE(parts.cross_entropy.isfinite().all().item<bool>());
  }

  // A width whose products go by whole tiles, and one whose don't.
  static std::vector<ModelSettings> models() {
    ModelSettings odd = test::small_model(), whole = odd;
    whole.d_model = 128;
    whole.d_expert = 96;
    return {odd, whole};
  }
};

TEST_P(HalfProducts, TheWatchSeesThem) {
  const Watch watch;
  at::mm(at::ones({4, 4}, GetParam()), at::ones({4, 4}, GetParam()));
  EXPECT_EQ(Watch::text(), "aten::mm ");
}

TEST_P(HalfProducts, TrainingHasNoneOfLibTorchs) {
  for (const ModelSettings& base : models()) {
    for (const Dispatch dispatch : {Dispatch::capacity, Dispatch::dropless, Dispatch::onehot}) {
      for (const AttentionKernel kernel : {AttentionKernel::flash, AttentionKernel::materialised,
                                           AttentionKernel::sliding_window, AttentionKernel::block_sparse}) {
        for (const int64_t shared : {0, 1}) {
          ModelSettings m = base;
          m.dispatch = dispatch;
          m.shared_experts = shared;
          AttentionSettings attention;
          attention.kernel = kernel;
          attention.window = 16;
          attention.block_size = 8;
          const Watch watch;
          train(m, attention);
          EXPECT_EQ(Watch::text(), "") << m.d_model << " dispatch " << static_cast<int>(dispatch)
                                       << " attention " << static_cast<int>(kernel) << " shared " << shared;
        }
      }
    }
    ModelSettings dense = base;
    dense.experts = 0;
    const Watch watch;
    train(dense, {});
    EXPECT_EQ(Watch::text(), "") << "dense " << base.d_model;
  }
}

TEST_P(HalfProducts, GenerationHasNoneOfLibTorchs) {
  for (const ModelSettings& m : models()) {
    Transformer model(m, {}, {.compute = GetParam(), .masters = false});
    DirectRunner direct;
    KvCache cache(m, 1, 40, GetParam(), at::kCPU);
    const at::Tensor tokens = at::randint(0, m.vocab, {1, 40}, at::kLong);
    const Watch watch;
    model.next_logits(tokens.narrow(1, 0, 37), cache, direct);
    for (const int64_t i : {37, 38, 39}) model.next_logits(tokens.narrow(1, i, 1), cache, direct);
    EXPECT_EQ(Watch::text(), "") << m.d_model;
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, HalfProducts, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return info.param == at::kHalf ? "fp16" : "bf16"; });

}  // namespace
}  // namespace moelab
