// An allocation is refused anywhere in a step: nothing of the step remains, and repeating it gives the
// undisturbed result.
#include <gtest/gtest.h>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "tests/kernels/reference.h"
#include "tests/temporary_folder.h"
#include "tests/train/step/random_run.h"
#include "train/predict/dry_run.h"
#include "train/step/trainer.h"

namespace moelab {
namespace {

using test::random_batches;
using test::small_settings;

constexpr int64_t kNever = 1'000'000;

std::vector<at::Tensor> state_of(Trainer& trainer) {
  std::vector<at::Tensor> copies;
  for (const TensorEntry& entry : trainer.weights()) copies.push_back(entry.tensor.clone());
  for (const TensorEntry& entry : trainer.optimizer_state()) copies.push_back(entry.tensor.clone());
  return copies;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!test::bitwise_equal(a[i], b[i])) return false;
  return a.size() == b.size();
}

// Number of charges to the ledger in a step.
int64_t charges_of(Trainer& trainer, int64_t step) {
  cpu_ledger().refuse_after(kNever);
  trainer.step(step);
  const int64_t left = cpu_ledger().refuse_after();
  cpu_ledger().refuse_after(-1);
  return kNever - left;
}

// Runs the step with charge number `index` refused. True if the step noticed.
bool refused_at(Trainer& trainer, int64_t step, int64_t index) {
  cpu_ledger().refuse_after(index);
  bool noticed = false;
  try {
    trainer.step(step);
  } catch (const c10::OutOfMemoryError&) {
    noticed = true;
  }
  cpu_ledger().refuse_after(-1);
  cpu_ledger().clear_refused();
  return noticed;
}

struct Case {
  const char* name;
  std::function<void(Settings&)> change;
  int64_t stride = 1;  // tests every stride-th allocation
};

std::vector<Case> cases() {
  return {
      {"fp32", [](Settings&) {}},
      {"accumulated bf16",
       [](Settings& s) {
         s.precision.compute = ComputePrecision::bf16;
         s.train.micro_batch = 2;
         s.train.accumulation = 2;
       },
       5},
      {"recomputed", [](Settings& s) { s.activations.checkpoint = CheckpointMode::full; }, 5},
      {"int8 storage", [](Settings& s) { s.activations.storage = ActivationStorage::int8; }, 5},
      {"dropless", [](Settings& s) { s.model.dispatch = Dispatch::dropless; }, 5},
      {"sigmoid router", [](Settings& s) { s.model.router = RouterKind::sigmoid; }, 5},
      {"fp16",
       [](Settings& s) {
         s.precision.compute = ComputePrecision::fp16;
         s.precision.loss_scale = {1};
       },
       7},
      {"optimizer on the host", [](Settings& s) { s.placement.optimizer = Home::host; }, 7},
      {"gradients on the host",
       [](Settings& s) {
         s.precision.compute = ComputePrecision::bf16;
         s.placement.gradients = Home::host;
         s.train.micro_batch = 2;
         s.train.accumulation = 2;
       },
       7},
      {"both in a file",
       [](Settings& s) {
         s.precision.compute = ComputePrecision::bf16;
         s.placement.optimizer = s.placement.gradients = Home::nvme;
       },
       7},
  };
}

TEST(Refusal, AtAnyAllocationLosesNothingAndWritesNoHalfUpdate) {
  install_allocators();
  const TemporaryFolder drive;
  for (const Case& c : cases()) {
    Settings s = small_settings();
    s.model.layers = 2;
    s.placement.nvme_path = drive.string();
    c.change(s);
    Trainer clean(s, at::kCPU, random_batches(s)), hit(s, at::kCPU, random_batches(s));
    clean.step(0);
    hit.step(0);
    const auto before = state_of(hit);
    const int64_t charges = charges_of(clean, 1);
    ASSERT_GT(charges, 50) << c.name;
    for (int64_t index = 0; index < charges; index += c.stride) {
      if (!refused_at(hit, 1, index)) {
        ADD_FAILURE() << c.name << ": charge " << index << " of " << charges << " was refused unseen";
        break;
      }
      ASSERT_TRUE(hit.abandon_step()) << c.name << ": charge " << index << " of " << charges;
      ASSERT_TRUE(same(state_of(hit), before)) << c.name << ": charge " << index << " of " << charges;
    }
    hit.step(1);
    EXPECT_TRUE(same(state_of(hit), state_of(clean))) << c.name;
  }
}

// The step repeated in smaller micro-batches is bitwise that of a run configured with this split.
TEST(Refusal, TheRepeatedStepIsAnUndisturbedOneOfThatSplit) {
  install_allocators();
  for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
    Settings s = small_settings();
    s.precision.compute = compute;
    Trainer clean(s, at::kCPU, random_batches(s)), hit(s, at::kCPU, random_batches(s));
    clean.step(0);
    hit.step(0);
    ASSERT_TRUE(refused_at(hit, 1, 150));
    ASSERT_TRUE(hit.abandon_step());
    for (Trainer* trainer : {&clean, &hit}) {
      trainer->set_split(2, 2);
      EXPECT_EQ(trainer->step(1).micro_batch, 2);
      trainer->set_split(4, 1);
      trainer->step(2);
    }
    EXPECT_TRUE(same(state_of(hit), state_of(clean)));
  }
}

// An update reserves its memory before it writes. The budget here has room for everything except that.
TEST(Refusal, AnUpdateThatDoesNotFitIsRefusedBeforeItWrites) {
  install_allocators();
  Settings s = small_settings();
  s.optim.name = OptimizerName::adafactor;  // a scratch of a double a row
  EXPECT_GT(dry_run(s).update_bytes, 0);
  EXPECT_EQ(dry_run(small_settings()).update_bytes, 0);
  Trainer trainer(s, at::kCPU, random_batches(s));
  cpu_ledger().reset_peaks();
  trainer.step(0);
  EXPECT_EQ(trainer.update_bytes(), dry_run(s).update_bytes);
  const auto before = state_of(trainer);
  set_limit(at::kCPU, 2 * cpu_ledger().peak());
  trainer.reserve_for_update(2 * cpu_ledger().peak());
  EXPECT_THROW(trainer.step(1), c10::OutOfMemoryError);
  EXPECT_TRUE(trainer.abandon_step());
  EXPECT_TRUE(same(state_of(trainer), before));
  set_limit(at::kCPU, 0);
  cpu_ledger().clear_refused();
}

TEST(Refusal, ASplitKeepsTheRows) {
  const Settings s = small_settings();
  Trainer trainer(s, at::kCPU, random_batches(s));
  EXPECT_THROW(trainer.set_split(3, 1), c10::Error);
  Settings in_backward = s;
  in_backward.optim.in_backward = true;
  Trainer other(in_backward, at::kCPU, random_batches(s));
  EXPECT_THROW(other.set_split(2, 2), c10::Error);
}

}  // namespace
}  // namespace moelab
