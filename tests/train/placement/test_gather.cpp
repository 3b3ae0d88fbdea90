#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "tests/temporary_folder.h"
#include "tests/train/settings/overrides.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/random_run.h"
#include "tests/user_error.h"
#include "train/predict/dry_run.h"

// Weights that come to the device a block at a time: from the host, from a file, or decoded from 8 bits.
namespace moelab {
namespace {

using test::carry_over, test::expect_equal, test::text_of, test::Overrides, test::operator+;

Settings settings_with(const Overrides& overrides) {
  return test::pico_settings(test::kSmallRun + overrides);
}

Overrides away(const std::string& home, const TemporaryFolder& drive) {
  return {"placement.parameters=" + home, "placement.nvme_path=" + drive.string(),
          "placement.nvme_block=4096"};
}

double held_out(Trainer& trainer, const Settings& s) {
  return trainer.evaluate([&](int64_t b) { return test::random_batch(s, 100 + b, 0, 4); }, 2);
}

// Everything that reads, recomputes, saves or writes weights.
std::vector<Overrides> variants() {
  return {{},
          {"precision.compute=bf16"},
          {"activations.checkpoint=full", "precision.compute=bf16"},
          {"activations.checkpoint=ratio", "activations.ratio=0.5"},
          {"activations.checkpoint=segments", "activations.every=3", "activations.pieces=[attention]"},
          {"train.accumulation=2", "precision.compute=bf16", "activations.storage=host"},
          {"train.accumulation=2", "activations.storage=int8", "model.tie_embeddings=false"},
          {"optim.in_backward=true", "activations.checkpoint=full"},
          {"optim.in_backward=true", "precision.compute=bf16"},
          {"optim.name=adamw_compact", "precision.compute=bf16"},
          {"placement.gradients=host", "precision.compute=bf16", "train.accumulation=2"},
          {"activations.pieces=[norms, moe]"},
          {"precision.master=none", "precision.compute=bf16", "optim.in_backward=true"},
          {"precision.compute=fp16", "model.dispatch=dropless", "model.qk_norm=head"},
          {"precision.compute=fp8", "model.shared_experts=1", "model.router=sigmoid"},
          {"model.experts=0", "model.layers=1"},
          {"model.dispatch=onehot", "attention.kernel=materialised", "optim.name=adam8bit"}};
}

TEST(Gather, WhereWeightsAreChangesNoBit) {
  const TemporaryFolder drive;
  for (const Overrides& variant : variants()) {
    const Settings on_device = settings_with(variant);
    Trainer plain(on_device, at::kCPU, test::random_batches(on_device));
    std::vector<StepReport> reports;
    for (int64_t step = 0; step < 3; ++step) reports.push_back(plain.step(step));
    for (const Overrides& homes : {away("host", drive), away("nvme", drive),
                                   away("host", drive) + Overrides{"placement.optimizer=host"},
                                   away("host", drive) + Overrides{"placement.optimizer=nvme"},
                                   away("nvme", drive) + Overrides{"placement.optimizer=nvme"}}) {
      const std::string where = text_of(variant) + text_of(homes);
      const Settings s = settings_with(variant + homes);
      Trainer moved(s, at::kCPU, test::random_batches(s));
      for (int64_t step = 0; step < 3; ++step) {
        const StepReport report = moved.step(step);
        EXPECT_EQ(report.loss, reports[step].loss) << where << ", step " << step;
        EXPECT_EQ(report.gradient_norm, reports[step].gradient_norm) << where << ", step " << step;
      }
      EXPECT_EQ(held_out(moved, s), held_out(plain, s)) << where;
      expect_equal(moved.weights(), plain.weights(), where);
      expect_equal(moved.optimizer_state(), plain.optimizer_state(), where);
    }
  }
  EXPECT_TRUE(drive.empty());
}

TEST(Gather, ARunGoesOnFromACheckpointBitForBit) {
  const TemporaryFolder drive;
  for (const Overrides& kind :
       {away("host", drive), away("nvme", drive) + Overrides{"precision.compute=bf16"},
        Overrides{"precision.compute=bf16", "precision.store=int8"},
        away("host", drive) + Overrides{"precision.compute=fp16", "precision.store=fp8"},
        away("nvme", drive) + Overrides{"optim.name=adamw_compact", "precision.compute=bf16"}}) {
    const Settings s = settings_with(kind);
    Trainer whole(s, at::kCPU, test::random_batches(s)), first(s, at::kCPU, test::random_batches(s));
    for (int64_t step = 0; step < 4; ++step) whole.step(step);
    for (int64_t step = 0; step < 2; ++step) first.step(step);
    Trainer second(s, at::kCPU, test::random_batches(s));
    carry_over(first, second);
    EXPECT_EQ(held_out(first, s), held_out(second, s)) << text_of(kind);
    for (int64_t step = 2; step < 4; ++step) second.step(step);
    expect_equal(whole.weights(), second.weights(), text_of(kind));
    expect_equal(whole.optimizer_state(), second.optimizer_state(), text_of(kind));
  }
}

// Bytes of the model's parameters, by how they are held.
struct Sizes {
  int64_t blocks = 0, block_masters = 0, coded = 0, rest = 0, rest_masters = 0;
  explicit Sizes(const Settings& s) {
    TransformerOptions options = compute_options(s.precision, at::kMeta);
    install_allocators();
    const Transformer model(s.model, s.attention, options);
    for (const Parameter& p : model.parameters()) {
      const bool block = p.name.starts_with("blocks."), beside = !p.master.is_same(p.value);
      const auto value = static_cast<int64_t>(p.value.nbytes());
      (block ? blocks : rest) += value;
      if (beside) (block ? block_masters : rest_masters) += 4 * p.value.numel();
      if (!block) continue;
      coded += beside ? p.value.numel() + 4 * ((p.value.numel() + 255) / 256) : value;
    }
  }
};

int64_t held(Kind a, std::optional<Kind> b = {}, Home home = Home::device) {
  const KindBytes kinds = cpu_ledger(home).by_kind();
  return kinds[static_cast<size_t>(a)] + (b ? kinds[static_cast<size_t>(*b)] : 0);
}

int64_t held_weights(Home home = Home::device) {
  return held(Kind::parameters, Kind::parameter_experts, home);
}

TEST(Gather, BetweenStepsWeightsLieWhereTheSettingSays) {
  install_allocators();
  const TemporaryFolder drive;
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    for (const char* home : {"host", "nvme"}) {
      const Settings s = settings_with(Overrides{compute} + away(home, drive));
      const Sizes sizes(s);
      const Home where = home == std::string("host") ? Home::host : Home::nvme;
      const int64_t device = held_weights(), masters = held(Kind::master);
      const int64_t there = held_weights(where), masters_there = held(Kind::master, {}, where);
      Trainer trainer(s, at::kCPU, test::random_batches(s));
      for (int64_t step = 0; step < 3; ++step) {
        EXPECT_EQ(held_weights() - device, sizes.rest) << compute << " " << home;
        EXPECT_EQ(held(Kind::master) - masters, sizes.rest_masters) << compute << " " << home;
        const int64_t padding = where == Home::nvme ? 4096 * 100 : 0;  // each tensor is padded to a page
        EXPECT_NEAR(held_weights(where) - there, sizes.blocks, padding) << compute << " " << home;
        EXPECT_NEAR(held(Kind::master, {}, where) - masters_there, sizes.block_masters, padding);
        trainer.step(step);
      }
      EXPECT_EQ(trainer.state_bytes().parameters,
                sizes.rest + sizes.rest_masters + sizes.blocks + sizes.block_masters);
    }
  }
}

TEST(Gather, CodedWeightsTakeAByteAndAScaleEvery256) {
  install_allocators();
  const TemporaryFolder drive;
  for (const char* store : {"precision.store=int8", "precision.store=fp8"}) {
    for (const char* compute :
         {"precision.compute=bf16", "precision.compute=fp16", "precision.compute=fp8"}) {
      const Settings s = settings_with({store, compute});
      const Sizes sizes(s);
      const int64_t device = held_weights(), masters = held(Kind::master);
      Trainer trainer(s, at::kCPU, test::random_batches(s));
      trainer.step(0);
      EXPECT_EQ(held_weights() - device, sizes.rest + sizes.coded) << store << " " << compute;
      EXPECT_EQ(held(Kind::master) - masters, sizes.rest_masters + sizes.block_masters);
      EXPECT_EQ(trainer.state_bytes().parameters,
                sizes.rest + sizes.coded + sizes.rest_masters + sizes.block_masters);
    }
    // and they move in that form
    const Settings s = settings_with(Overrides{store, "precision.compute=bf16"} + away("host", drive));
    const int64_t there = held_weights(Home::host);
    Trainer trainer(s, at::kCPU, test::random_batches(s));
    trainer.step(0);
    EXPECT_EQ(held_weights(Home::host) - there, Sizes(s).coded) << store;
  }
}

// The blocks' weights are missing from each peak, except two blocks': the running one and its neighbour.
TEST(Gather, EachPhasePeaksLowerByTheBlocksThatAreAway) {
  const TemporaryFolder drive;
  const Overrides model = {"model.layers=8", "model.d_expert=256", "train.micro_batch=1"};
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const Settings on_device = settings_with(model + Overrides{compute});
    const Settings on_host = settings_with(model + Overrides{compute} + away("host", drive));
    const Sizes sizes(on_device);
    const DryRun plain = dry_run(on_device), moved = dry_run(on_host);
    const int64_t both = sizes.blocks + sizes.block_masters, block = sizes.blocks / on_device.model.layers;
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      const auto i = static_cast<size_t>(phase);
      const int64_t fell = plain.phase_peak[i] - moved.phase_peak[i];
      EXPECT_LE(fell, both) << compute << " " << phase_name(phase);
      EXPECT_GE(fell, both - 2 * block) << compute << " " << phase_name(phase);
    }
    // one parameter at a time, with its master
    for (const Phase phase : {Phase::init, Phase::step}) {
      const auto i = static_cast<size_t>(phase);
      const int64_t fell = plain.phase_peak[i] - moved.phase_peak[i];
      const int64_t share = both / on_device.model.layers;  // w13 is the larger half of a block
      EXPECT_LE(fell, both) << compute << " " << phase_name(phase);
      EXPECT_GE(fell, both - share) << compute << " " << phase_name(phase);
    }
  }
}

TEST(Gather, ADryRunPredictsThePeak) {
  install_allocators();
  const TemporaryFolder drive;
  const Overrides model = {"model.d_expert=128", "train.sequence=48"};
  for (const Overrides& variant :
       {away("host", drive), away("nvme", drive), away("host", drive) + Overrides{"precision.compute=bf16"},
        away("nvme", drive) +
            Overrides{"precision.compute=bf16", "activations.checkpoint=full", "optim.in_backward=true"},
        Overrides{"precision.compute=bf16", "precision.store=int8"},
        Overrides{"precision.compute=bf16", "precision.store=fp8", "activations.checkpoint=ratio",
                  "activations.ratio=0.5", "train.accumulation=2"},
        away("nvme", drive) + Overrides{"precision.compute=bf16", "precision.store=int8"}}) {
    const Settings s = settings_with(model + variant);
    const DryRun predicted = dry_run(s);
    const test::MeasuredRun got = test::measured_run(s);
    EXPECT_NEAR(static_cast<double>(predicted.peak) / static_cast<double>(got.device), 1, 0.01)
        << text_of(variant);
    EXPECT_EQ(predicted.nvme_peak, got.nvme) << text_of(variant);
  }
}

// Largest errors. int8: half of one of 254 steps of the block's range; e4m3: half of its 4th significant bit,
// or of its smallest step, 2^-9 of 448. On top, half of bf16's last place before and after.
TEST(Gather, CodedWeightsAreOffByNoMoreThanTheCodeCan) {
  for (const auto& [store, relative, step, norm] : {std::tuple{WeightStore::int8, 0.0, 1 / 254.0, 0.011},
                                                    {WeightStore::fp8, 1 / 16.0, 0x1p-10 / 448, 0.03}}) {
    Settings s = settings_with({"precision.compute=bf16"});
    s.precision.store = store;
    GatheredWeights weights(s, at::kCPU);
    TransformerOptions options = compute_options(s.precision, at::kCPU);
    options.made = [&](const Parameter& parameter) { weights.adopt(parameter); };
    const Transformer model(s.model, s.attention, options);
    double errors = 0, squares = 0;
    weights.gather(2);
    for (const Parameter& p : model.parameters()) {
      if (!p.name.starts_with("blocks.2.") || p.master.is_same(p.value)) continue;
      const at::Tensor want = p.master.detach().to(at::kDouble).flatten();
      const at::Tensor off = (p.value.detach().to(at::kDouble).flatten() - want).abs();
      for (int64_t i = 0; i < want.numel(); i += 256) {
        const int64_t n = std::min<int64_t>(256, want.numel() - i);
        const at::Tensor w = want.narrow(0, i, n).abs();
        const at::Tensor code = at::maximum(w * relative, w.max() * step);
        const at::Tensor bound = (code + w * 0x1p-7) * (1 + 0x1p-6);
        EXPECT_TRUE((off.narrow(0, i, n) <= bound).all().item<bool>()) << p.name << " from " << i;
      }
      errors += off.square().sum().item<double>();
      squares += want.square().sum().item<double>();
    }
    weights.release(2);
    const double error = std::sqrt(errors / squares);
    std::cout << "relative error of the weights: " << error << "\n";
    EXPECT_LT(error, norm);
    EXPECT_GT(error, norm / 10) << "nothing was coded";
  }
}

// Trained repeatedly on one batch, the loss falls as far.
TEST(Gather, CodedWeightsLearnAsPlainOnesDo) {
  const auto losses = [](const Overrides& overrides) {
    const Settings s = settings_with(Overrides{"precision.compute=bf16", "train.steps=40"} + overrides);
    Trainer trainer(s, at::kCPU, [&](int64_t, int64_t first, int64_t rows) {
      return test::random_batch(s, 0, first, rows);
    });
    std::vector<double> all;
    for (int64_t step = 0; step < 40; ++step) all.push_back(trainer.step(step).loss);
    return all;
  };
  const std::vector<double> plain = losses({});
  for (const char* store : {"precision.store=int8", "precision.store=fp8"}) {
    const std::vector<double> coded = losses({store});
    std::cout << store << ": loss " << coded.back() << " after 40 steps, " << plain.back() << " plain\n";
    EXPECT_LT(coded.back(), coded.front() - 0.5);
    EXPECT_NEAR(coded.back(), plain.back(), 0.1) << store;
    EXPECT_NE(coded.back(), plain.back()) << store;
  }
}

// What inference loads sees the same weights as training.
TEST(Gather, RoundedMastersAreWhatCodedTrainingComputesWith) {
  const Settings s = settings_with({"precision.compute=bf16", "precision.store=fp8"});
  Trainer trainer(s, at::kCPU, test::random_batches(s));
  trainer.step(0);
  Transformer model(s.model, s.attention, compute_options(s.precision, at::kCPU));
  const auto from = trainer.weights(), to = model_state(model);
  for (size_t i = 0; i < to.size(); ++i) to[i].tensor.copy_(from[i].tensor);
  round_masters(model, s.precision);
  DirectRunner direct;
  const auto batch = [&](int64_t b) { return test::random_batch(s, 100 + b, 0, 4); };
  EXPECT_EQ(evaluate(model, direct, batch, 2), held_out(trainer, s));
  round_masters(model);
  EXPECT_NE(evaluate(model, direct, batch, 2), held_out(trainer, s));
}

TEST(Gather, AStepThatFoundNoMemoryLeavesNothingBehindAndIsRepeated) {
  install_allocators();
  const TemporaryFolder drive;
  for (const Overrides& kind :
       {away("host", drive), away("nvme", drive) + Overrides{"precision.compute=bf16"},
        Overrides{"precision.compute=bf16", "precision.store=int8"}}) {
    const Settings s = settings_with(kind);
    Ledger& ledger = cpu_ledger();
    Trainer plain(s, at::kCPU, test::random_batches(s)), pressed(s, at::kCPU, test::random_batches(s));
    plain.step(0);
    pressed.step(0);
    const int64_t held = ledger.allocated();
    ledger.reset_peaks();
    plain.step(1);
    const int64_t needed = ledger.peak() - held;
    int refused = 0;
    for (int64_t part = 1; part < 20; ++part) {
      ledger.set_limit(held + needed * part / 20);
      try {
        pressed.step(1);
        ADD_FAILURE() << "a step fit " << part << "/20 of what it needs";
      } catch (const c10::OutOfMemoryError&) {
        ++refused;
      }
      ledger.set_limit(0);
      ledger.clear_refused();
      ASSERT_TRUE(pressed.abandon_step());
      EXPECT_EQ(ledger.allocated(), held) << text_of(kind) << part;
    }
    EXPECT_EQ(refused, 19);
    pressed.step(1);
    expect_equal(plain.weights(), pressed.weights(), text_of(kind));
  }
}

TEST(Gather, AFolderThatTakesNoFileIsTheUsersMistake) {
  const TemporaryFolder drive;
  const Settings s =
      settings_with({"placement.parameters=nvme", "placement.nvme_path=" + (drive / "gone").string()});
  const std::string message = user_error([&] { Trainer trainer(s, at::kCPU, test::random_batches(s)); });
  EXPECT_NE(message.find("gone"), std::string::npos) << message;
}

TEST(Gather, ContradictionsNameBothSettings) {
  const auto expect = [](const Overrides& overrides, const char* one, const char* other) {
    const std::string message = user_error([&] { settings_with(overrides); });
    EXPECT_NE(message.find(one), std::string::npos) << message;
    EXPECT_NE(message.find(other), std::string::npos) << message;
  };
  expect({"placement.parameters=nvme"}, "placement.parameters=nvme", "placement.nvme_path");
  expect({"precision.store=int8"}, "precision.store=int8", "precision.compute=fp32");
  expect({"precision.store=fp8", "precision.compute=bf16", "precision.master=none"}, "precision.store=fp8",
         "precision.master=none");
  expect({"precision.store=int8", "precision.compute=bf16", "optim.name=adamw_compact"},
         "precision.store=int8", "optim.name=adamw_compact");
  expect({"precision.store=fp16", "precision.compute=bf16"}, "precision.store=fp16",
         "precision.compute=bf16");
  settings_with({"precision.store=bf16", "precision.compute=fp8"});
  settings_with({"precision.store=fp32"});
}

}  // namespace
}  // namespace moelab
