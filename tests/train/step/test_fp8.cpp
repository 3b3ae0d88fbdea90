#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <iostream>

#include "tests/kernels/reference.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/precision_runs.h"
#include "train/settings/options.h"

// Products in fp8, in the trainer.
namespace moelab {
namespace {

using namespace test;

TEST(Fp8, LearnsAsFp32Does) {
  EXPECT_NEAR(learned_loss(fp8_settings()) / learned_loss(small_settings()), 1, 0.05);
}

TEST(Fp8, GradientsAreWithinItsRoundingOfFp32s) {
  for (const auto dispatch : {Dispatch::capacity, Dispatch::dropless}) {
    for (const int64_t experts : {4, 0}) {
      Settings s = small_settings();
      s.model.dispatch = dispatch;
      s.model.experts = experts;
      s.model.shared_experts = experts > 0 ? 1 : 0;
      s.model.experts_per_token = 4;
      s.model.capacity_factor = 4;
      const auto want = gradients(s, at::kFloat, 1), fp8 = gradients(s, at::kBFloat16, 1, true),
                 bf16 = gradients(s, at::kBFloat16, 1);
      // a gradient rounds by up to 2^-3 of its value, an e4m3 factor by 2^-4, in each of four layers
      EXPECT_LT(off(fp8, want), 0.2) << name_of(s);
      EXPECT_GT(off(fp8, want), 2 * off(bf16, want)) << name_of(s);
    }
  }
}

// A text that the program contains (its settings help), by rows from `first` on.
Batch text_batch(const Settings& s, int64_t first) {
  const std::string text = settings_help([](const std::string&) { return true; });
  const int64_t rows = s.train.micro_batch, length = s.train.sequence;
  const at::Tensor ids = at::empty({rows, length + 1}, at::kLong);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t row = i / (length + 1), column = i % (length + 1);
    ids.data_ptr<int64_t>()[i] = static_cast<uint8_t>(text.at((first + row) * length + column));
  }
  return {ids.narrow(1, 0, length).contiguous(), ids.narrow(1, 1, length).contiguous()};
}

// On text, after 20 steps in fp32: the gradient error of 8-bit products, compared with that of 16 bits.
TEST(Fp8, GradientErrorOnARealBatch) {
  Settings s = small_settings();
  s.model.vocab = 256;
  s.train.sequence = 64;
  s.train.steps = 20;
  Trainer trainer(s, at::kCPU, [&](int64_t step, int64_t, int64_t) { return text_batch(s, 4 * step); });
  for (int64_t step = 0; step < 20; ++step) trainer.step(step);
  const auto at_weights = [&](at::ScalarType compute, bool fp8) {
    TransformerOptions options;
    options.compute = compute;
    options.fp8 = fp8;
    Transformer model(s.model, s.attention, options);
    test::copy(trainer.weights(), model_state(model));
    round_masters(model);
    DirectRunner direct;
    const Batch batch = text_batch(s, 80);
    model.objective(model.forward(batch.tokens, batch.targets, true, direct)).backward();
    std::vector<at::Tensor> all;
    for (const Parameter& p : model.parameters()) {
      // the embedding's gradient comes from the head, which is not in fp8, and is larger than all others
      if (p.name.starts_with("blocks.")) all.push_back(p.value.grad().to(at::kDouble).flatten());
    }
    return std::vector<at::Tensor>{at::cat(all)};
  };
  const auto want = at_weights(at::kFloat, false), bf16 = at_weights(at::kBFloat16, false),
             fp8 = at_weights(at::kBFloat16, true);
  const auto cosine = [&](const std::vector<at::Tensor>& got) {
    return (got[0].dot(want[0]) / got[0].norm() / want[0].norm()).item<double>();
  };
  std::cout << "gradient on a real batch against fp32: fp8 off by " << off(fp8, want) << ", cosine "
            << cosine(fp8) << "; bf16 off by " << off(bf16, want) << ", cosine " << cosine(bf16) << "\n";
  EXPECT_GT(cosine(fp8), 0.98);
  EXPECT_GT(cosine(bf16), cosine(fp8));
}

TEST(Fp8, GoesOnBitwiseAndRecomputesBitwise) {
  for (const auto mode : {CheckpointMode::none, CheckpointMode::full}) {
    Settings s = fp8_settings();
    s.activations.checkpoint = mode;
    Trainer first(s, at::kCPU, random_batches(s)), second(s, at::kCPU, random_batches(s)),
        kept(fp8_settings(), at::kCPU, random_batches(s));
    for (int64_t step = 0; step < 3; ++step) EXPECT_EQ(first.step(step).loss, kept.step(step).loss);
    carry_over(first, second);
    for (int64_t step = 3; step < 5; ++step) EXPECT_EQ(first.step(step).loss, second.step(step).loss);
    test::expect_equal(first.weights(), second.weights(), name_of(s));
  }
}

}  // namespace
}  // namespace moelab
