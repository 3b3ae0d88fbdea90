#include "train/generate/decode_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/cuda_device.h"
#include "tests/moe/logits_tolerance.h"
#include "tests/train/generate/texts.h"
#include "train/generate/batch.h"

// Compares the decode pass with the ordinary one. On a GPU it is captured in a CUDA graph and replayed; on
// the CPU it is launched directly, which tests everything except the capture.
namespace moelab {
namespace {

using test::kPositions;

struct Case {
  c10::DeviceType device;
  AttentionKernel kernel;
  bool grouped;  // fewer heads of keys and values
  bool bf16 = false;
};

class DecodeSteps : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { MOELAB_NEEDS(c10::Device(GetParam().device)); }
  static Settings settings() {
    Settings s = test::settings_for_texts(GetParam().kernel);
    s.model.kv_heads = GetParam().grouped ? 2 : 4;
    if (GetParam().bf16) s.precision.compute = ComputePrecision::bf16;
    if (GetParam().device == at::kCUDA && !GetParam().bf16) s.model.experts = 0;  // in fp32 they wait
    return resolve(s);
  }
  static c10::Device device() {
    return GetParam().device == at::kCUDA ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU);
  }
  // A slightly trained model, so that texts are not all alike.
  static std::unique_ptr<Trainer> trained(const Settings& s) {
    auto trainer = std::make_unique<Trainer>(s, device(), test::random_batches(s));
    for (int64_t step = 0; step < 4; ++step) trainer->step(step);
    return trainer;
  }

  DirectRunner direct_;
  const std::vector<std::vector<int64_t>> prompts_ = test::prompts();
};

// Three texts of different lengths, one of them at first without a token, five tokens each; compared with a
// separate cache for each text.
TEST_P(DecodeSteps, LogitsAreThoseOfTheLaunchedPass) {
  const Settings s = settings();
  const auto trainer = trained(s);
  Transformer& model = trainer->model();
  if (!DecodeStep::fits(model)) GTEST_SKIP() << "experts' products wait for the host on this GPU";
  KvCache all(s.model, 3, kPositions, model.compute(), device());
  all.layer(0).kv_BPGd.fill_(3);  // masked positions are not zeros
  std::vector<KvCache> own, part;
  const auto tensor = [&](const std::vector<int64_t>& ids) {
    return at::tensor(ids, at::kLong).unsqueeze(0).to(device());
  };
  for (int64_t i = 0; i < 3; ++i) {
    own.emplace_back(s.model, 1, kPositions, model.compute(), device());
    part.push_back(all.sequence(i));
    model.next_logits(tensor(prompts_[size_t(i)]), own.back(), direct_);
    model.next_logits(tensor(prompts_[size_t(i)]), part.back(), direct_);
  }
  DecodeStep decode(model, direct_, all);
  const test::Tolerance tolerance = test::logits_tolerance(s.model, kPositions, model.compute());
  for (int64_t step = 0; step < 5; ++step) {
    std::vector<DecodeStep::Next> next;
    for (int64_t i = 0; i < 3; ++i) next.push_back({(7 * step + 11 * i) % 61, part[size_t(i)].length()});
    const int64_t idle = step < 2 ? 1 : -1;
    if (idle >= 0) next[1].token = 0;
    const at::Tensor got = decode.read(next);
    ASSERT_EQ(got.sizes(), at::IntArrayRef({3, 61}));
    for (int64_t i = 0; i < 3; ++i) {
      if (i == idle) continue;
      part[size_t(i)].grow(1);
      const at::Tensor want = model.next_logits(tensor({next[size_t(i)].token}), own[size_t(i)], direct_);
      EXPECT_TRUE(test::close_to(got[i], want[0].to(at::kCPU, at::kFloat), tolerance)) << step << " " << i;
    }
  }
  EXPECT_EQ(own[0].length(), part[0].length());
}

// In fp8 the host waits for the experts' offsets on every GPU.
TEST(DecodeStepsCuda, DoNotFitExpertsInFp8) {
  MOELAB_NEEDS_CUDA();
  Settings s = test::settings_for_texts(AttentionKernel::flash);
  s.precision.compute = ComputePrecision::fp8;
  const Transformer model(s.model, s.attention, compute_options(s.precision, c10::Device(at::kCUDA, 0)));
  EXPECT_FALSE(DecodeStep::fits(model));
}

// All at once, with waiting texts, and with prompts read in parts.
TEST_P(DecodeSteps, TextsAreThoseOfTheLaunchedPass) {
  if (GetParam().bf16) GTEST_SKIP() << "two logits may be the same in bf16";
  const Settings s = settings();
  const auto trainer = trained(s);
  GenerateOptions options{{0.0}, 20, {}};
  for (const auto& [sequences, tokens] : {std::pair{5, 100}, {2, 100}, {1, 100}, {3, 4}}) {
    std::vector<std::vector<int64_t>> texts[2];
    for (const bool captured : {false, true}) {
      options.captured = captured;
      for (const Generated& text :
           generate_batch(trainer->model(), direct_, prompts_, options, {sequences, kPositions, tokens}))
        texts[captured].push_back(text.tokens);
    }
    EXPECT_EQ(texts[1], texts[0]) << sequences << " texts, " << tokens << " tokens a pass";
  }
  for (const auto& prompt : prompts_) {
    KvCache cache(s.model, 1, kPositions, at::kFloat, device());
    options.captured = false;
    const Generated want = generate(trainer->model(), cache, prompt, options);
    options.captured = true;
    const Generated got = generate(trainer->model(), cache, prompt, options);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.steps, want.steps);
    EXPECT_EQ(got.ending, want.ending);
  }
}

TEST_P(DecodeSteps, FillsTheCacheToItsLastPlace) {
  if (GetParam().bf16) GTEST_SKIP() << "as in fp32";
  const Settings s = settings();
  const auto trainer = trained(s);
  GenerateOptions options{{0.0}, 100, {}};
  options.captured = true;
  for (const Generated& text :
       generate_batch(trainer->model(), direct_, prompts_, options, {2, kPositions, 100}))
    EXPECT_EQ(text.ending, Ending::positions);
}

INSTANTIATE_TEST_SUITE_P(Devices, DecodeSteps,
                         ::testing::Values(Case{at::kCPU, AttentionKernel::flash, false},
                                           Case{at::kCPU, AttentionKernel::flash, true},
                                           Case{at::kCPU, AttentionKernel::sliding_window, false},
                                           Case{at::kCPU, AttentionKernel::block_sparse, true},
                                           Case{at::kCUDA, AttentionKernel::flash, false},
                                           Case{at::kCUDA, AttentionKernel::flash, true},
                                           Case{at::kCUDA, AttentionKernel::sliding_window, false},
                                           Case{at::kCPU, AttentionKernel::flash, true, true},
                                           Case{at::kCUDA, AttentionKernel::block_sparse, true},
                                           Case{at::kCUDA, AttentionKernel::flash, true, true}),
                         [](const auto& info) {
                           return std::string(info.param.device == at::kCUDA ? "Cuda" : "Cpu") + "_" +
                                  std::string(enum_names(info.param.kernel)[size_t(info.param.kernel)]) +
                                  (info.param.grouped ? "_grouped" : "") + (info.param.bf16 ? "_bf16" : "");
                         });

}  // namespace
}  // namespace moelab
