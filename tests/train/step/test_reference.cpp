#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"
#include "tests/kernels/reference.h"
#include "tests/temporary_folder.h"
#include "tests/train/step/random_run.h"
#include "train/checkpoint/checkpoint.h"
#include "train/predict/dry_run.h"
#include "train/settings/print.h"

namespace moelab {
namespace {

std::vector<at::Tensor> copies(const std::vector<TensorEntry>& entries) {
  std::vector<at::Tensor> all;
  for (const TensorEntry& entry : entries) all.push_back(entry.tensor.clone());
  return all;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!test::bitwise_equal(a[i], b[i])) return false;
  return a.size() == b.size();
}

class Reference : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_allocators(); }

  // Saves a checkpoint of that model with the initial weights of `seed`.
  std::string save(Settings s, const std::string& name, int64_t seed) {
    s.train.seed = seed;
    s.reference = {};
    s.precision = {};
    Trainer trainer(s, at::kCPU, test::random_batches(s));
    CheckpointContent content;
    content.model = trainer.weights();
    content.files["config.yaml"] = print_settings(s);
    write_checkpoint(folder_ / name, content, 1);
    return (folder_ / name / "step-0").string();
  }

  struct Run {
    std::vector<StepReport> reports;
    std::vector<at::Tensor> weights;
    int64_t peak = 0, reference_bytes = 0, host_bytes = 0;
  };
  static Run train(const Settings& s, int64_t steps) {
    Run run;
    cpu_ledger().enter_phase(Phase::init);
    const int64_t before = cpu_ledger().allocated(), host = cpu_ledger(Home::host).allocated();
    std::vector<Batch> batches;
    {
      const HomeScope outside(Home::host);
      for (int64_t step = 0; step < steps; ++step)
        batches.push_back(test::random_batch(s, step, 0, s.train.micro_batch * s.train.accumulation));
    }
    cpu_ledger().reset_peaks();
    Trainer trainer(s, at::kCPU, [&](int64_t step, int64_t first, int64_t rows) {
      const HomeScope outside(Home::host);
      return Batch{batches[step].tokens.narrow(0, first, rows).contiguous(),
                   batches[step].targets.narrow(0, first, rows).contiguous()};
    });
    run.reference_bytes = cpu_ledger().by_kind()[static_cast<size_t>(Kind::reference)];
    run.host_bytes = cpu_ledger(Home::host).allocated() - host;
    for (int64_t step = 0; step < steps; ++step) run.reports.push_back(trainer.step(step));
    run.peak = cpu_ledger().tensor_peak() - before;
    run.weights = copies(trainer.weights());
    return run;
  }

  Settings dropless() {
    Settings s = test::small_settings();
    s.model.dispatch = Dispatch::dropless;
    return s;
  }

  TemporaryFolder folder_;
};

// Computed in float64 from both models' whole logits.
TEST_F(Reference, TheReportedDivergenceIsTheDefinitions) {
  Settings s = dropless();
  s.train.accumulation = 2;
  s.reference.path = save(s, "other", 7);
  Trainer trainer(s, at::kCPU, test::random_batches(s));
  Settings other = s;
  other.train.seed = 7;
  other.reference = {};
  Trainer reference(other, at::kCPU, test::random_batches(s));
  at::Tensor want = at::zeros({}, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    DirectRunner direct;
    for (const int64_t first : {0, 4}) {
      const Batch batch = test::random_batch(s, 0, first, 4);
      const auto log_of = [&](Trainer& of) {
        return at::log_softmax(of.model().logits(batch.tokens, direct).to(at::kDouble), -1);
      };
      const at::Tensor log_p = log_of(trainer), log_q = log_of(reference);
      want += (log_p.exp() * (log_p - log_q)).sum(-1).mean() / 2;
    }
  }
  const StepReport report = trainer.step(0);
  EXPECT_NEAR(*report.reference_kl, want.item<double>(), 1e-5 * want.item<double>());
  EXPECT_FALSE(reference.step(0).reference_kl.has_value());
}

// Compares every parameter's gradient with that of the same objective, by separate operators over whole
// logits.
TEST_F(Reference, GradientsAreThoseOfTheWholeObjective) {
  Settings s = dropless();
  s.reference = {save(s, "other", 7), 2.5};
  ReferenceModel reference(s, at::kCPU);
  TransformerOptions options;
  Transformer model(s.model, s.attention, options), twin(s.model, s.attention, options);
  options.seed = 7;
  Transformer other(s.model, s.attention, options);
  const Batch batch = test::random_batch(s, 0, 0, 4);
  DirectRunner direct;
  const ReferenceHead head = reference.read(batch.tokens);
  const LossParts parts = model.forward(batch.tokens, batch.targets, true, direct, {.reference = &head});
  model.objective(parts).backward();

  const auto log_of = [&](Transformer& of) {
    return at::log_softmax(of.logits(batch.tokens, direct).flatten(0, 1), -1);
  };
  const at::Tensor log_p = log_of(twin), log_q = log_of(other).detach();
  const at::Tensor divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean();
  const LossParts auxiliary = twin.forward(batch.tokens, batch.targets, true, direct);
  (twin.objective(auxiliary) + 2.5 * divergence).backward();
  EXPECT_NEAR(parts.reference_kl.item<double>(), divergence.item<double>(), 1e-5);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    EXPECT_TRUE(test::close_to(model.parameters()[i].value.grad(),
                               twin.parameters()[i].value.grad().to(at::kDouble), 2e-5, 2e-3))
        << model.parameters()[i].name;
  }
}

// If the reference has the initial weights, it adds nothing to the first step, even with dropped tokens.
TEST_F(Reference, TheSameModelAddsNothing) {
  for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
    for (const auto dispatch : {Dispatch::capacity, Dispatch::dropless, Dispatch::onehot}) {
      Settings s = test::small_settings();
      s.model.dispatch = dispatch;
      s.model.capacity_factor = 0.5;
      s.precision.compute = compute;
      const Run plain = train(s, 1);
      s.reference = {save(s, "same", s.train.seed), 10};
      const Run held = train(s, 1);
      EXPECT_EQ(held.reports[0].reference_kl, 0.0);
      EXPECT_TRUE(same(held.weights, plain.weights));
    }
  }
}

TEST_F(Reference, WithoutWeightItIsMeasuredAlone) {
  Settings s = test::small_settings();
  const Run plain = train(s, 3);
  s.reference = {save(s, "other", 7), 0};
  const Run measured = train(s, 3);
  EXPECT_TRUE(same(measured.weights, plain.weights));
  for (const StepReport& report : measured.reports) EXPECT_GT(*report.reference_kl, 1e-4);
  s.reference.kl = 1;
  EXPECT_FALSE(same(train(s, 3).weights, plain.weights));
}

// The term's purpose: where it outweighs the data, the model moves towards the reference.
TEST_F(Reference, DrawsTheModelTowardsIt) {
  Settings s = test::small_settings();
  s.optim.lr = 3e-3;
  s.train.steps = 30;
  s.reference.path = save(s, "other", 7);
  const auto change = [&](double weight) {
    s.reference.kl = weight;
    const Run run = train(s, 30);
    return *run.reports.back().reference_kl / *run.reports.front().reference_kl;
  };
  EXPECT_LT(change(1000), 0.5);
  EXPECT_GT(change(0), 0.8);
}

// In every home its weights are gathered block by block, and the results are bitwise the same.
TEST_F(Reference, PlacementsDifferInMemoryAlone) {
  for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
    Settings s = test::small_settings();
    s.model.layers = 6;
    s.precision.compute = compute;
    s.placement.nvme_path = folder_.string();
    s.reference = {save(s, "other", 7), 1};
    const Run device = train(s, 2);
    for (const Home home : {Home::host, Home::nvme}) {
      s.reference.placement = home;
      const Run away = train(s, 2);
      EXPECT_TRUE(same(away.weights, device.weights));
      EXPECT_EQ(away.reports[1].reference_kl, device.reports[1].reference_kl);
      EXPECT_LT(away.reference_bytes, device.reference_bytes / 5);  // embedding and last norm stay
      EXPECT_LT(away.peak, device.peak - device.reference_bytes / 2);
      const int64_t left = device.reference_bytes * (home == Home::host ? 4 : 0) / 5;
      EXPECT_GE(away.host_bytes - device.host_bytes, left);
    }
  }
}

TEST_F(Reference, TheDryRunKnowsIt) {
  for (const Home home : {Home::device, Home::host}) {
    for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
      for (const WeightStore store : {WeightStore::compute, WeightStore::int8}) {
        if (store != WeightStore::compute && compute == ComputePrecision::fp32) continue;
        Settings s = test::small_settings();
        s.model.d_model = 64;
        s.model.layers = 5;
        s.precision.compute = compute;
        s.precision.store = store;
        s.reference = {save(s, "other", 7), 1, home};
        const auto measured = static_cast<double>(train(s, 2).peak);
        const DryRun predicted = dry_run(s);
        EXPECT_NEAR(static_cast<double>(predicted.peak) / measured, 1, 0.01)
            << enum_names(home)[static_cast<size_t>(home)] << " " << measured;
        EXPECT_GT(predicted.by_kind_at_peak[static_cast<size_t>(Kind::reference)], 0);
      }
    }
  }
}

// fp16's loss scale and recomputed blocks are not affected by it.
TEST_F(Reference, WorksBesideOtherTechniques) {
  Settings s = test::small_settings();
  s.reference = {save(s, "other", 7), 1};
  const Run plain = train(s, 2);
  s.activations.checkpoint = CheckpointMode::full;
  s.placement.parameters = Home::host;
  EXPECT_TRUE(same(train(s, 2).weights, plain.weights));
  s.precision.compute = ComputePrecision::fp16;
  const Run half = train(s, 2);
  EXPECT_FALSE(half.reports[1].skipped);
  EXPECT_NEAR(*half.reports[1].reference_kl, *plain.reports[1].reference_kl,
              0.02 * *plain.reports[1].reference_kl);
}

// A step that runs out of memory anywhere can be repeated, and leaves nothing of the reference behind.
TEST_F(Reference, ARefusedStepIsRepeatedBitForBit) {
  Settings s = test::small_settings();
  s.reference = {save(s, "other", 7), 1, Home::host};
  const Run plain = train(s, 1);
  for (const int64_t charges : {3, 10, 20, 30, 60}) {
    Trainer trainer(s, at::kCPU, test::random_batches(s));
    trainer.reserve_for_update(1 << 16);
    const int64_t held = cpu_ledger().allocated();
    cpu_ledger().refuse_after(charges);
    EXPECT_THROW(trainer.step(0), c10::OutOfMemoryError);
    cpu_ledger().refuse_after(-1);
    ASSERT_TRUE(trainer.abandon_step());
    cpu_ledger().clear_refused();
    EXPECT_EQ(cpu_ledger().by_kind()[static_cast<size_t>(Kind::reference)], plain.reference_bytes);
    EXPECT_LE(cpu_ledger().allocated(), held + (1 << 16));
    trainer.step(0);
    EXPECT_TRUE(same(copies(trainer.weights()), plain.weights)) << charges;
  }
}

}  // namespace
}  // namespace moelab
