#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"
#include "kernels/moe/dispatch.h"
#include "tests/temporary_folder.h"
#include "tests/train/activations/model_gradients.h"
#include "train/settings/convert.h"

// Partly recomputed blocks: gradients are bitwise the same, and memory shrinks by exactly the pieces' bytes.
namespace moelab {
namespace {

using test::Gradients, test::Model, test::Overrides;

Settings with_pieces(Settings s, std::vector<Piece> pieces) {
  s.activations.pieces = std::move(pieces);
  return s;
}

// Precisions, kernels, dispatches, routers and shapes, each at least once.
std::vector<Overrides> variants() {
  return {{},
          {"precision.compute=bf16", "model.kv_heads=2"},
          {"precision.compute=fp16", "model.dispatch=dropless"},
          {"precision.compute=fp8", "model.shared_experts=1", "model.d_expert=88"},
          {"model.experts=0", "model.qk_norm=head", "model.clip_qkv=2"},
          {"model.experts=0", "precision.compute=fp8"},
          {"model.router=sigmoid", "model.qk_norm=full", "precision.compute=bf16", "model.dispatch=dropless"},
          {"model.router=expert_choice", "attention.kernel=materialised", "model.shared_experts=2"},
          {"attention.kernel=sliding_window", "attention.window=9", "model.d_expert=40"}};
}

const std::vector<std::vector<Piece>> kSets = {
    {Piece::norms},
    {Piece::attention},
    {Piece::expert_hidden},
    {Piece::moe},
    {Piece::norms, Piece::expert_hidden},
    {Piece::attention, Piece::norms, Piece::expert_hidden},
    {Piece::norms, Piece::attention, Piece::expert_hidden, Piece::moe}};

TEST(Pieces, GradientsAreBitwiseThoseOfKeeping) {
  for (const Overrides& variant : variants()) {
    const Settings keep = test::settings_with(variant);
    Model model(keep);
    const Gradients exact = model.gradients();
    EXPECT_GT(exact[0].second.norm().item<double>(), 0);
    for (const auto& pieces : kSets) {
      model.use(with_pieces(keep, pieces));
      test::expect_equal(exact, model.gradients(), test::text_of(variant) + value_text(pieces));
    }
  }
}

TEST(Pieces, OneHotDispatchTooButForItsHiddenState) {
  const Settings keep = test::settings_with({"model.dispatch=onehot", "attention.kernel=materialised"});
  Model model(keep);
  const Gradients exact = model.gradients();
  model.use(with_pieces(keep, {Piece::norms, Piece::attention, Piece::moe}));
  test::expect_equal(exact, model.gradients(), "onehot");
  model.use(with_pieces(keep, {Piece::norms}));
  test::expect_equal(exact, model.gradients(), "onehot, norms");
}

TEST(Pieces, GoWithWholeBlocksAndWithStorage) {
  install_allocators();
  const TemporaryFolder folder;
  for (const char* compute : {"fp32", "bf16"}) {
    const Overrides base = {std::string("precision.compute=") + compute, "model.shared_experts=1"};
    Model model(test::settings_with(base));
    const Gradients exact = model.gradients();
    for (const Overrides& with : std::vector<Overrides>{
             {"activations.checkpoint=every", "activations.every=2"},
             {"activations.checkpoint=segments", "activations.every=3"},
             {"activations.checkpoint=segments", "activations.every=2", "activations.storage=host"},
             {"activations.checkpoint=layers", "activations.layers=[1]", "activations.storage=host"},
             {"activations.storage=nvme", "placement.nvme_path=" + folder.string()},
             {"activations.checkpoint=full"}}) {
      Overrides overrides = base;
      overrides.insert(overrides.end(), with.begin(), with.end());
      for (const auto& pieces : {kSets[4], kSets[5], kSets[6]}) {
        model.use(with_pieces(test::settings_with(overrides), pieces));
        for (int step = 0; step < 2; ++step) {
          test::expect_equal(exact, model.gradients(), test::text_of(overrides) + value_text(pieces));
        }
      }
    }
  }
}

// With compression, a piece is recomputed from the decoded input: gradients stay near the exact ones, and
// nothing crashes.
TEST(Pieces, GoWithCompression) {
  const Settings keep = test::settings_with({"activations.storage=int8"});
  Model model(test::settings_with({}));
  const Gradients exact = model.gradients();
  for (const auto& pieces : kSets) {
    model.use(with_pieces(keep, pieces));
    const Gradients got = model.gradients();
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      ab += (exact[i].second * got[i].second).sum().item<double>();
      aa += exact[i].second.square().sum().item<double>();
      bb += got[i].second.square().sum().item<double>();
    }
    EXPECT_GT(ab / std::sqrt(aa * bb), 0.999) << value_text(pieces);
    EXPECT_LT(ab / std::sqrt(aa * bb), 1 - 1e-9) << value_text(pieces);
  }
}

class Bytes : public testing::Test {
 protected:
  Bytes() {
    install_allocators();
    model.backward(model.forward());  // whatever only the first step makes and keeps
  }
  // Device bytes that forward leaves for backward.
  int64_t held(const Settings& s) {
    model.use(s);
    const int64_t before = cpu_ledger().allocated();
    const at::Tensor loss = model.forward();
    return cpu_ledger().allocated() - before;
  }
  int64_t saved(std::vector<Piece> pieces) { return held(keep) - held(with_pieces(keep, std::move(pieces))); }

  Settings keep = test::settings_with({});
  Model model{keep};
  const int64_t L = keep.model.layers, B = keep.train.micro_batch, S = keep.train.sequence, T = B * S,
                D = keep.model.d_model;
};

TEST_F(Bytes, NormsAreTheirTwoOutputs) { EXPECT_EQ(saved({Piece::norms}), L * 2 * T * D * 4); }

TEST_F(Bytes, ExpertHiddenIsThePreActivation) {
  const ModelSettings& m = keep.model;
  const int64_t rows = m.experts * B * expert_capacity(S, m.experts_per_token, m.experts, m.capacity_factor);
  EXPECT_EQ(saved({Piece::expert_hidden}), L * rows * 2 * m.d_expert * 4);
}

TEST_F(Bytes, AttentionIsAllBetweenItsInputAndItsOutput) {
  const int64_t N = keep.model.heads + 2 * keep.model.kv(), q = keep.model.heads * keep.model.head();
  // the norm's output and deviations, qkv, attention's output and its logsumexp
  EXPECT_EQ(saved({Piece::attention}), L * T * 4 * (D + 1 + N * keep.model.head() + q + keep.model.heads));
}

TEST_F(Bytes, OfBothHalvesTheirInputsAndTheRoutingAreLeft) {
  const Settings halves = with_pieces(keep, {Piece::attention, Piece::moe});
  Settings blocks = keep;
  blocks.activations.checkpoint = CheckpointMode::full;
  EXPECT_EQ(held(halves) - held(blocks), L * T * D * 4);
}

// One input for each segment, with the two sums of losses that enter it; blocks alone keep an input each.
TEST_F(Bytes, SegmentsKeepOneInputEach) {
  Settings blocks = keep, segments = keep;
  blocks.activations.checkpoint = CheckpointMode::full;
  segments.activations.checkpoint = CheckpointMode::segments;
  for (const int64_t together : {1, 2, 4, 5, 9}) {
    segments.activations.every = together;
    const int64_t kept = (L + together - 1) / together, sums = together > 1 ? kept * 2 * 4 : 0;
    EXPECT_EQ(held(blocks) - held(segments), (L - kept) * T * D * 4 - sums) << together;
  }
}

// In backward a segment is there whole, but for the pieces that are recomputed once more.
TEST_F(Bytes, ASegmentThatRunsAgainKeepsWhatItsBlocksKeep) {
  const auto peak = [&](const Settings& s) {
    model.use(s);
    cpu_ledger().enter_phase(Phase::backward);
    cpu_ledger().reset_peaks();
    const int64_t before = cpu_ledger().allocated();
    model.gradients();
    return cpu_ledger().peak() - before;
  };
  Settings segments = keep;
  segments.activations.checkpoint = CheckpointMode::segments;
  std::vector<int64_t> peaks;
  for (const int64_t together : {1, 2, 4}) {
    segments.activations.every = together;
    peaks.push_back(peak(segments));
  }
  EXPECT_LT(peaks[0], peaks[1]);
  EXPECT_LT(peaks[1], peaks[2]);
  EXPECT_LT(peak(with_pieces(segments, {Piece::attention, Piece::moe})), peaks[2]);
}

TEST_F(Bytes, WholeBlocksAreNotCutInPieces) {
  Settings full = keep, half = keep;
  full.activations.checkpoint = CheckpointMode::full;
  half.activations.checkpoint = CheckpointMode::ratio;
  half.activations.ratio = 0.5;
  ASSERT_EQ(L % 2, 0);
  EXPECT_EQ(held(full), held(with_pieces(full, kSets.back())));
  EXPECT_EQ(held(half) - held(with_pieces(half, {Piece::norms, Piece::expert_hidden})),
            saved({Piece::norms, Piece::expert_hidden}) / 2);
}

TEST_F(Bytes, ThePiecesThatCostLittleAreMostOfTheActivations) {
  EXPECT_GT(static_cast<double>(saved({Piece::norms, Piece::expert_hidden})),
            0.45 * static_cast<double>(held(keep)));
}

TEST_F(Bytes, StorageHoldsWhatIsNotRecomputed) {
  Settings host = keep;
  host.activations.storage = ActivationStorage::host;
  held(host);
  const int64_t stored = model.saved().stored_bytes();
  held(with_pieces(host, {Piece::norms}));
  EXPECT_EQ(stored - model.saved().stored_bytes(), L * 2 * T * D * 4);
}

TEST_F(Bytes, BackwardGivesAllBack) {
  for (const auto& pieces : kSets) {
    model.use(with_pieces(keep, pieces));
    model.gradients();
    const int64_t before = cpu_ledger().allocated();
    model.gradients();
    { const at::Tensor abandoned = model.forward(); }
    EXPECT_EQ(cpu_ledger().allocated(), before) << value_text(pieces);
  }
}

TEST(Pieces, RoutingCountsOnce) {
  const Settings keep = test::settings_with({});
  Model model(keep);
  const auto loads = [&] {
    model.transformer().reset_routing_stats();
    model.gradients();
    std::vector<at::Tensor> all;
    for (const RoutingStats& stats : model.transformer().routing_stats()) all.push_back(stats.load_E.clone());
    return at::stack(all);
  };
  const at::Tensor want = loads();
  model.use(with_pieces(keep, {Piece::moe}));
  EXPECT_TRUE(at::equal(loads(), want));
}

}  // namespace
}  // namespace moelab
