#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "tests/covering_array.h"
#include "tests/temporary_folder.h"
#include "tests/train/step/beside_one_rank.h"
#include "tests/train/step/data_ranks.h"
#include "train/parallel/layout.h"
#include "train/settings/load.h"
#include "train/settings/validate.h"

// Ranks that divide the state, as threads, beside one rank that takes all micro-batches: the same bits.
namespace moelab {
namespace {

using test::expect_bits_of_one_rank;
using test::Levels;
using test::Outcome;
using test::outcome_of;
using test::sums_in_fp32;
using Overrides = std::vector<std::string>;
// One factor of the runs, with its levels: settings of each.
struct Factor {
  const char* name;
  std::vector<Overrides> levels;
};

const std::vector<Factor>& factors() {
  static const std::vector<Factor> all = {
      {"zero", {{"parallel.zero=1"}, {"parallel.zero=2"}, {"parallel.zero=3"}}},
      {"ranks", {{"parallel.data=2"}, {"parallel.data=3"}, {"parallel.data=4"}}},
      {"experts", {{}, {"parallel.expert=2"}, {"parallel.expert=4"}}},
      {"precision",
       {{"precision.compute=fp32"},
        {"precision.compute=bf16"},
        {"precision.compute=bf16", "precision.master=none"},
        {"precision.compute=fp16"},
        {"precision.compute=fp8"},
        {"precision.compute=bf16", "precision.store=int8"}}},
      {"optimizer",
       {{"optim.name=adamw"},
        {"optim.name=adamw", "optim.state=bf16"},
        {"optim.name=adam8bit"},
        {"optim.name=adamw_compact"},
        {"optim.name=adam_mini"},
        {"optim.name=lion"},
        {"optim.name=adafactor"},
        {"optim.name=sgd"},
        {"optim.name=muon"}}},
      {"parameters", {{}, {"placement.parameters=host"}, {"placement.parameters=nvme"}}},
      {"gradients", {{}, {"placement.gradients=host"}, {"placement.gradients=nvme"}}},
      {"state", {{}, {"placement.optimizer=host"}, {"placement.optimizer=nvme"}}},
      {"recomputed", {{}, {"activations.checkpoint=full"}, {"activations.pieces=[norms, expert_hidden]"}}},
      {"storage", {{}, {"activations.storage=int8"}, {"activations.storage=host"}}},
      {"in_backward", {{}, {"optim.in_backward=true", "optim.clip=0"}}},
      {"accumulation", {{}, {"train.accumulation=2"}}},
      {"reduction", {{}, {"parallel.reduce=step"}}},
      {"rows", {{}, {"train.tokens_per_device=96", "train.micro_batch=1"}}},
      {"model", {{}, {"model.experts=0"}, {"model.dispatch=dropless", "model.tie_embeddings=true"}}},
  };
  return all;
}

Overrides overrides_of(const Levels& row, const std::string& drive) {
  Overrides all = test::kTinyRun;
  all.push_back("placement.nvme_path=" + drive);
  for (size_t f = 0; f < row.size(); ++f) {
    const Overrides& level = factors()[f].levels[row[f]];
    all.insert(all.end(), level.begin(), level.end());
  }
  return all;
}

// Of ranks that share the experts: LibTorch's fp32 products of groups of any size depend on where a row lies,
// and compressed activations on which rows share a block of 256 elements.
bool has_bits_of_one_rank(const Settings& s) {
  return s.activations.storage != ActivationStorage::int8 &&
         (s.model.dispatch != Dispatch::dropless || !sums_in_fp32(s));
}

std::string text_of(const Levels& row) {
  std::string text;
  for (size_t f = 0; f < row.size(); ++f)
    for (const std::string& one : factors()[f].levels[row[f]]) text += one + " ";
  return text;
}

TEST(Zero, EveryThreeTechniquesTogetherHaveTheBitsOfOneRank) {
  const TemporaryFolder drive;
  std::vector<size_t> counts;
  for (const Factor& factor : factors()) counts.push_back(factor.levels.size());
  const auto valid = [&](const Levels& row) {
    try {
      const Settings s = load_settings({.config = "moe-pico", .overrides = overrides_of(row, drive.path())});
      layout_of(s.parallel.data, s.parallel.data, 1, 1, s.parallel.expert);
      if (s.parallel.expert > 1 && !has_bits_of_one_rank(s)) return false;
      return s.parallel.reduce == Reduction::micro_batch || s.train.accumulation == 1;  // else another order
    } catch (const UserError&) {
      return false;
    }
  };
  const test::CoveringArray array(counts, valid);
  RecordProperty("runs", static_cast<int>(array.rows().size()));
  RecordProperty("combinations", static_cast<int>(array.combinations()));
  EXPECT_LE(array.rows().size(), 300U);
  for (const Levels& row : array.rows()) {
    SCOPED_TRACE(text_of(row));
    const Settings s = load_settings({.config = "moe-pico", .overrides = overrides_of(row, drive.path())});
    expect_bits_of_one_rank(s, text_of(row));
    if (HasFailure()) return;
  }
}

// Added once a step, gradients are in another order, and the ranks still agree bit for bit. Elements that are
// sent: of P, times (N - 1) for whole gradients, (N - 1) / N for parts.
TEST(Zero, GradientsAddedOnceAStepAreCloseAndTravelOnce) {
  constexpr int64_t kRanks = 3, kAccumulation = 4;
  for (const std::string stage : {"0", "1"}) {
    for (const std::string precision : {"fp32", "bf16"}) {
      const auto settings = [&](const std::string& reduction) {
        Overrides overrides = overrides_of(Levels(factors().size()), "");
        for (const std::string& one :
             {"parallel.zero=" + stage, "precision.compute=" + precision, "parallel.reduce=" + reduction,
              "parallel.data=" + std::to_string(kRanks),
              "train.accumulation=" + std::to_string(kAccumulation)})
          overrides.push_back(one);
        return load_settings({.config = "moe-pico", .overrides = overrides});
      };
      std::vector<Outcome> exact(kRanks), got(kRanks);
      const auto bytes_of_gradients = [&](const Settings& s, std::vector<Outcome>& outcomes) {
        std::vector<int64_t> sent(kRanks);
        const BatchSource batches = test::random_batches(s);
        test::run_data_ranks(kRanks, [&](DataRanks data) {
          outcomes[data.rank()] = outcome_of(s, batches, data);
          sent[data.rank()] = data.gradients->sent_bytes();
        });
        return std::accumulate(sent.begin(), sent.end(), int64_t{0});
      };
      const int64_t often = bytes_of_gradients(settings("micro_batch"), exact),
                    once = bytes_of_gradients(settings("step"), got);
      const auto ratio = static_cast<double>(often) / static_cast<double>(once * kAccumulation);
      EXPECT_NEAR(ratio, precision == "fp32" ? 1 : 0.505, precision == "fp32" ? 0 : 0.005);  // some stay fp32
      EXPECT_NE(got[0].numbers, exact[0].numbers) << "another order must be seen";
      double difference = 0, size = 0;
      for (int64_t r = 0; r < kRanks; ++r) {
        const std::string where = "stage " + stage + " " + precision + " rank " + std::to_string(r);
        EXPECT_EQ(got[r].numbers, got[0].numbers) << where;
        if (stage == "0") test::expect_same(got[r], got[0], where);
        for (size_t i = 0; i < got[r].weights.size(); ++i) {
          const at::Tensor want = exact[r].weights[i].tensor.to(at::kDouble);
          difference += got[r].weights[i].tensor.to(at::kDouble).sub(want).square().sum().item<double>();
          size += want.square().sum().item<double>();
        }
      }
      EXPECT_LE(std::sqrt(difference / size), precision == "fp32" ? 5e-6 : 5e-4) << precision;
      EXPECT_GT(difference, 0);
    }
  }
}

// One micro-batch alone reads an infinite weight: no rank takes the step.
TEST(Zero, ALossThatIsNotFiniteOnOneRankIsSkippedByAll) {
  for (const std::string stage : {"0", "2", "3"}) {
    Overrides overrides = overrides_of(Levels(factors().size()), "");
    for (const std::string& one : {"parallel.zero=" + stage, std::string("parallel.data=3"),
                                   std::string("model.tie_embeddings=false")})
      overrides.push_back(one);
    const Settings s = load_settings({.config = "moe-pico", .overrides = overrides});
    const BatchSource random = test::random_batches(s);
    const BatchSource batches = [&](int64_t step, int64_t first, int64_t count) {
      Batch batch = random(step, first, count);
      batch.tokens.clamp_(1);
      if (step == 0 && first == 2) batch.tokens.view(-1)[5] = 0;  // of rank 1
      return batch;
    };
    test::run_data_ranks(3, [&](DataRanks ranks) {
      Trainer trainer(s, at::kCPU, batches, ranks);
      std::vector<TensorEntry> weights = trainer.weights();
      TensorEntry& embedding = weights.front();
      ASSERT_EQ(embedding.name, "embedding");
      if (!embedding.part || embedding.part->first == 0)
        embedding.tensor.view(-1).narrow(0, 0, s.model.d_model).fill_(std::numeric_limits<float>::infinity());
      trainer.set_weights(weights);
      std::vector<at::Tensor> before;
      for (const TensorEntry& entry : trainer.weights()) before.push_back(entry.tensor.clone());
      EXPECT_TRUE(trainer.step(0).skipped) << "stage " << stage << " rank " << ranks.rank();
      const std::vector<TensorEntry> after = trainer.weights();
      for (size_t i = 0; i < after.size(); ++i)
        EXPECT_TRUE(test::bitwise_equal(after[i].tensor, before[i])) << after[i].name;
      const StepReport next = trainer.step(1);
      EXPECT_FALSE(next.skipped);
      EXPECT_TRUE(std::isfinite(next.loss));
    });
  }
}

}  // namespace
}  // namespace moelab
