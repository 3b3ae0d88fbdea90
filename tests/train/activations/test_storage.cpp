#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "tests/temporary_folder.h"
#include "tests/train/activations/model_gradients.h"

// Gradients of a whole model on real text, for each form in which saved tensors are stored.
namespace moelab {
namespace {

namespace fs = std::filesystem;
using test::expect_equal, test::settings_with, test::text_of;
using test::Gradients, test::Model, test::Overrides, test::operator+;

double cosine(const Gradients& a, const Gradients& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor x = a[i].second.to(at::kDouble).flatten(), y = b[i].second.to(at::kDouble).flatten();
    ab += x.dot(y).item<double>();
    aa += x.dot(x).item<double>();
    bb += y.dot(y).item<double>();
  }
  return ab / std::sqrt(aa * bb);
}

// Kernels, dispatches, types and recomputation: each value at least once, in varying combinations.
std::vector<Overrides> variants() {
  return {
      {},
      {"precision.compute=bf16", "activations.checkpoint=full"},
      {"attention.kernel=materialised", "model.dispatch=onehot", "activations.checkpoint=ratio",
       "activations.ratio=0.5"},
      {"attention.kernel=materialised", "precision.compute=bf16", "model.dispatch=dropless"},
      {"model.experts=0", "model.qk_norm=head"},
      {"attention.kernel=sliding_window", "attention.window=9", "activations.checkpoint=full"},
      {"attention.kernel=block_sparse", "attention.block_size=8", "attention.local_blocks=2",
       "precision.compute=bf16"},
      {"model.dispatch=onehot", "precision.compute=bf16", "model.router=sigmoid", "model.shared_experts=1"}};
}

// A single matrix's gradient may turn further than the whole model's: early in training the gradients of
// queries and keys are small differences of large terms. The gradients of their norms' weights are hardly
// more than such differences, so they are checked only as part of the whole.
TEST(Storage, CompressedGradientsPointTheSameWay) {
  for (const Overrides& variant : variants()) {
    Model model(settings_with(variant));
    model.descend(5);
    const Gradients exact = model.gradients();
    for (const auto& [storage, whole, each] : {std::tuple{"int8", 0.9999, 0.95}, {"fp8", 0.999, 0.5}}) {
      Overrides overrides = variant;
      overrides.push_back(std::string("activations.storage=") + storage);
      model.use(settings_with(overrides));
      const Gradients got = model.gradients();
      const double together = cosine(exact, got);
      EXPECT_GE(together, whole) << text_of(overrides);
      EXPECT_LT(together, 1 - 1e-9) << text_of(overrides) << "nothing was compressed";
      for (size_t i = 0; i < exact.size(); ++i) {
        if (exact[i].second.dim() < 2) continue;
        EXPECT_GE(cosine({exact[i]}, {got[i]}), each) << text_of(overrides) << exact[i].first;
      }
    }
  }
}

TEST(Storage, OffloadedGradientsAreBitwiseTheSame) {
  install_allocators();
  const TemporaryFolder folder;
  for (const Overrides& variant : variants()) {
    Model model(settings_with(variant));
    const Gradients exact = model.gradients();
    for (const char* storage : {"host", "nvme"}) {
      Overrides overrides = variant;
      overrides.push_back(std::string("activations.storage=") + storage);
      overrides.push_back("placement.nvme_path=" + folder.string());
      overrides.push_back("placement.nvme_block=64KiB");
      model.use(settings_with(overrides));
      for (int step = 0; step < 3; ++step) {
        expect_equal(exact, model.gradients(), text_of(overrides) + std::to_string(step));
      }
      EXPECT_GT(model.saved().stored_tensors(), 0);
      EXPECT_TRUE(folder.empty());
    }
  }
}

// Coded bytes decode to the same values in another home as on the device.
TEST(Storage, CompressedGradientsAreBitwiseTheSameInEveryHome) {
  install_allocators();
  const TemporaryFolder folder;
  for (const Overrides& variant : variants()) {
    for (const std::string code : {"int8", "fp8"}) {
      Model model(settings_with(variant + Overrides{"activations.storage=" + code}));
      const Gradients on_device = model.gradients();
      const int64_t stored = model.saved().stored_tensors();
      for (const std::string home : {"_host", "_nvme"}) {
        const Overrides overrides =
            variant + Overrides{"activations.storage=" + code + home,
                                "placement.nvme_path=" + folder.string(), "placement.nvme_block=64KiB"};
        model.use(settings_with(overrides));
        for (int step = 0; step < 3; ++step)
          expect_equal(on_device, model.gradients(), text_of(overrides) + std::to_string(step));
        EXPECT_EQ(model.saved().stored_tensors(), stored);
        EXPECT_TRUE(folder.empty());
      }
    }
  }
}

// A recomputed block stores only its input, both in forward and while it runs again.
TEST(Storage, ARecomputedBlockStoresItsInputAlone) {
  const Settings s = settings_with({"activations.storage=int8", "activations.checkpoint=full"});
  Model model(s);
  model.gradients();
  // the blocks' inputs; the last norm's input and reciprocal deviations
  EXPECT_EQ(model.saved().stored_tensors(), s.model.layers + 2);
  const int64_t tokens = s.train.micro_batch * s.train.sequence;
  EXPECT_EQ(model.saved().stored_bytes(), (s.model.layers + 1) * tokens * s.model.d_model * 4 + tokens * 4);
}

// The device bytes that forward stores are those of the formula.
TEST(Storage, PackedBytesAreThoseOfTheFormula) {
  install_allocators();
  Settings keep = settings_with({"model.experts=0"});
  keep.train.sequence = 256;  // whole blocks only
  Model model(keep);
  model.backward(model.forward());  // whatever only the first step makes and keeps
  const auto held = [&] {
    const int64_t before = cpu_ledger().allocated();
    const at::Tensor loss = model.forward();
    return cpu_ledger().allocated() - before;
  };
  Settings host = keep, nvme = keep;
  host.activations.storage = ActivationStorage::host;
  model.use(host);
  const int64_t left_alone = held(), stored = model.saved().stored_bytes();
  EXPECT_GT(stored, 10 * left_alone);
  for (const auto storage : {ActivationStorage::int8, ActivationStorage::fp8}) {
    for (const int64_t block : {256, 64}) {
      Settings packed = keep;
      packed.activations.storage = storage;
      packed.activations.block = block;
      model.use(packed);
      EXPECT_EQ(held() - left_alone, stored / 4 + stored / 4 / block * 4) << block;
      EXPECT_EQ(model.saved().stored_bytes(), stored);
    }
  }
}

TEST(Storage, HostMemoryIsMadeOnceAndNotWasted) {
  install_allocators();
  Model model(settings_with({"activations.storage=host"}));
  Ledger& host = cpu_ledger(Home::host);
  const int64_t before = host.allocated();
  model.gradients();
  EXPECT_EQ(host.allocated(), before) << "the first pass keeps nothing: its slab comes with the second";
  model.gradients();
  const int64_t slab = host.allocated() - before;
  EXPECT_GE(slab, model.saved().stored_bytes());
  EXPECT_LE(slab, 1.05 * static_cast<double>(model.saved().stored_bytes()));
  host.set_limit(1);  // refuses every block from here on
  for (int step = 0; step < 3; ++step) EXPECT_NO_THROW(model.gradients());
  host.set_limit(0);
  EXPECT_FALSE(host.refused());
  model.use(settings_with({}));
  EXPECT_EQ(host.allocated(), before);
}

// The device keeps none of these bytes. The other home holds, and the bus transfers, a quarter of the bytes
// plus a scale per block, apart from alignment.
TEST(Storage, CompressedBytesWaitElsewhere) {
  install_allocators();
  const TemporaryFolder folder;
  Model model(settings_with({}));
  const auto device_bytes = [&](const char* storage) {
    model.use(settings_with({std::string("activations.storage=") + storage,
                             "placement.nvme_path=" + folder.string(), "placement.nvme_block=64KiB"}));
    model.gradients();
    const int64_t before = cpu_ledger().allocated();
    const at::Tensor loss = model.forward();
    return cpu_ledger().allocated() - before;
  };
  const int64_t left_alone = device_bytes("host"), host = cpu_ledger(Home::host).allocated();
  EXPECT_EQ(device_bytes("int8_host"), left_alone);
  const auto coded = static_cast<double>(model.saved().stored_bytes()) / 4 * (1 + 4.0 / 256);
  EXPECT_LT(cpu_ledger(Home::host).allocated(), 0.3 * static_cast<double>(host));
  cpu_ledger(Home::nvme).reset_peaks();
  EXPECT_EQ(device_bytes("fp8_nvme"), left_alone);
  const auto in_file = static_cast<double>(cpu_ledger(Home::nvme).peak());
  EXPECT_GE(in_file, coded);
  EXPECT_LE(in_file, coded + 4096.0 * static_cast<double>(model.saved().stored_tensors()));
}

TEST(Storage, NvmeHoldsFourTilesInMemoryAndTheRestInItsFile) {
  install_allocators();
  const TemporaryFolder folder;
  Model model(settings_with({}));
  Ledger &host = cpu_ledger(Home::host), &nvme = cpu_ledger(Home::nvme);
  const int64_t before = host.allocated();
  host.reset_peaks();
  nvme.reset_peaks();
  model.use(settings_with({"activations.storage=nvme", "placement.nvme_path=" + folder.string(),
                           "placement.nvme_block=128KiB", "placement.nvme_depth=3"}));
  model.gradients();
  EXPECT_LE(host.peak() - before, 3 * (128 << 10) + 4096);
  EXPECT_GE(nvme.peak(), model.saved().stored_bytes());
  EXPECT_LE(nvme.peak(), 1.05 * static_cast<double>(model.saved().stored_bytes()));
  EXPECT_EQ(nvme.allocated(), 0);
}

// A forward pass without a backward also gives everything back.
TEST(Storage, AnAbandonedForwardLeavesNothing) {
  install_allocators();
  const TemporaryFolder folder;
  for (const char* storage : {"int8", "host", "nvme", "int8_host", "fp8_nvme"}) {
    Settings s = settings_with(
        {std::string("activations.storage=") + storage, "placement.nvme_path=" + folder.string()});
    Model model(s);
    const int64_t device = cpu_ledger().allocated();
    { const at::Tensor loss = model.forward(); }
    const int64_t statistics = cpu_ledger().allocated() - device;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor loss = model.forward();
      EXPECT_GT(cpu_ledger().allocated(), device + statistics);
    }
    EXPECT_EQ(cpu_ledger().allocated() - device, statistics) << storage;
    EXPECT_EQ(cpu_ledger(Home::nvme).allocated(), 0) << storage;
  }
}

// Forward may free one tensor and store another while others wait: each keeps its own place.
TEST(Storage, PlacesAreNotGivenTwice) {
  const TemporaryFolder folder;
  for (const char* storage : {"int8", "host", "nvme", "int8_host", "fp8_nvme"}) {
    const auto store = make_tensor_store(settings_with({std::string("activations.storage=") + storage,
                                                        "placement.nvme_path=" + folder.string()}),
                                         at::kCPU);
    for (int round = 0; round < 3; ++round) {
      const at::Tensor a = at::full({1000}, 1.0), b = at::full({3000}, 2.0), c = at::full({2000}, 3.0);
      auto first = store->store(a);
      const auto second = store->store(b);
      first.reset();
      first = store->store(c);
      at::Tensor got_b = at::zeros_like(b), got_c = at::zeros_like(c);
      second->read(got_b);
      first->read(got_c);
      EXPECT_TRUE(at::equal(got_b, b) && at::equal(got_c, c)) << storage << " " << round;
    }
  }
}

TEST(Storage, NvmeWithoutItsFolderIsAMistake) {
  for (const char* storage : {"nvme", "fp8_nvme"})
    EXPECT_THROW(settings_with({std::string("activations.storage=") + storage}), UserError) << storage;
  EXPECT_THROW(make_tensor_store(settings_with({"activations.storage=nvme", "placement.nvme_path=/nowhere"}),
                                 at::kCPU),
               UserError);
  EXPECT_NO_THROW(make_tensor_store(
      settings_with({"activations.storage=nvme", "placement.nvme_path=/nowhere"}), at::kMeta));
}

}  // namespace
}  // namespace moelab
