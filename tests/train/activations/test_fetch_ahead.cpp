#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/memory/device_memory.h"
#include "kernels/update/squared_norm.h"
#include "tests/cuda_device.h"
#include "tests/temporary_folder.h"
#include "tests/train/activations/model_gradients.h"
#include "train/activations/compressed_store.h"
#include "train/activations/fetch_ahead.h"
#include "train/activations/host_store.h"
#include "train/activations/nvme_store.h"

// Fetching ahead of backward: in which order tensors are fetched, and that no bit of a gradient changes. The
// stores fetch ahead on CUDA only; here the tests make them do so on the CPU too.
namespace moelab {
namespace {

using test::expect_equal, test::settings_with, test::text_of;
using test::Gradients, test::Model, test::Overrides;

// Logs when it is fetched and when it is waited for.
class Recorded : public OffloadedTensor {
 public:
  Recorded(std::shared_ptr<FetchAhead> ahead, std::string name, std::string& log)
      : OffloadedTensor(std::move(ahead), at::zeros({4})), name_(std::move(name)), log_(log) {}

 private:
  void start(const at::Tensor& to) override {
    EXPECT_EQ(to.nbytes(), 16);
    log_ += name_ + " ";
  }
  void finish() override { log_ += "wait:" + name_ + " "; }

  std::string name_;
  std::string& log_;
};

std::string taken(std::string& log) { return std::exchange(log, {}); }

TEST(FetchAhead, ABlockAndTheOneBeforeComeOnce) {
  const auto ahead = std::make_shared<FetchAhead>(true);
  std::string log;
  std::vector<std::unique_ptr<Recorded>> tensors;
  for (const char* name : {"a", "b", "|", "c", "|", "|", "d", "e"}) {
    if (name == std::string("|")) {
      ahead->begin_block(false);
    } else {
      tensors.push_back(std::make_unique<Recorded>(ahead, name, log));
    }
  }
  const at::Tensor e = tensors[4]->fetched();
  EXPECT_EQ(taken(log), "d e c wait:e ");
  EXPECT_TRUE(tensors[4]->fetched().is_same(e));
  EXPECT_EQ(taken(log), "wait:e ");
  tensors.resize(3);
  tensors[2]->fetched();
  EXPECT_EQ(taken(log), "a b wait:c ");
  tensors[0]->fetched();
  EXPECT_EQ(taken(log), "wait:a ");
  tensors.clear();
  ahead->begin_block(false);
  tensors.push_back(std::make_unique<Recorded>(ahead, "f", log));  // the next forward
  tensors[0]->fetched();
  EXPECT_EQ(taken(log), "f wait:f ");
}

// In that mode LibTorch fills new memory, which counts as a change of the tensor.
TEST(FetchAhead, WithDeterministicAlgorithmsToo) {
  const auto ahead = std::make_shared<FetchAhead>(true);
  std::string log;
  Recorded tensor(ahead, "a", log);
  at::globalContext().setDeterministicAlgorithms(true, true);
  EXPECT_NO_THROW(tensor.fetched());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(FetchAhead, WithoutItEachReadsItsOwn) {
  const auto ahead = std::make_shared<FetchAhead>(false);
  std::string log;
  Recorded tensor(ahead, "a", log);
  EXPECT_FALSE(tensor.fetched().defined());
  tensor.read(at::zeros({4}));
  EXPECT_EQ(log, "a wait:a ");
}

std::unique_ptr<TensorStore> store_ahead(bool host, const TemporaryFolder& folder) {
  if (host) return std::make_unique<HostStore>(at::kCPU, true);
  return std::make_unique<NvmeStore>(folder.path(), 64 << 10, 3, at::kCPU, true);
}

TEST(FetchAhead, GradientsAreBitwiseTheSame) {
  install_allocators();
  const TemporaryFolder folder;
  for (const Overrides& variant :
       {Overrides{}, Overrides{"activations.checkpoint=full", "precision.compute=bf16"},
        Overrides{"activations.checkpoint=ratio", "activations.ratio=0.5", "model.dispatch=dropless",
                  "activations.pieces=[norms,expert_hidden]"}}) {
    const Settings s = settings_with(variant);
    Model model(s);
    const Gradients exact = model.gradients();
    for (const bool host : {true, false}) {
      model.use(s, store_ahead(host, folder));
      for (int step = 0; step < 3; ++step) {
        expect_equal(exact, model.gradients(), text_of(variant) + (host ? "host" : "nvme"));
      }
      EXPECT_GT(model.saved().stored_tensors(), 0);
    }
  }
  EXPECT_EQ(cpu_ledger(Home::nvme).allocated(), 0);
  EXPECT_TRUE(folder.empty());
}

// Coded bytes decode to the same values whether they were fetched or never left the device.
TEST(FetchAhead, CodedGradientsAreBitwiseTheSame) {
  const TemporaryFolder folder;
  const Settings s = settings_with({"precision.compute=bf16"});
  Model model(s);
  model.use(s, std::make_unique<CompressedStore>(BlockCode::int8, 256));
  const Gradients exact = model.gradients();
  for (const bool host : {true, false}) {
    model.use(s, std::make_unique<CompressedStore>(BlockCode::int8, 256, store_ahead(host, folder)));
    for (int step = 0; step < 3; ++step) expect_equal(exact, model.gradients(), host ? "host" : "nvme");
  }
  EXPECT_TRUE(folder.empty());
}

// At most two blocks' tensors of those held outside are on the device at a time.
TEST(FetchAhead, BackwardHoldsTwoBlocks) {
  install_allocators();
  Settings s = settings_with({"model.layers=12", "activations.checkpoint=full", "model.experts=0"});
  s.train.micro_batch = 32;  // so that the blocks' inputs outweigh the gradients
  Model model(s);
  const auto peak = [&](std::unique_ptr<TensorStore> store) {
    model.use(s, std::move(store));
    model.gradients();
    cpu_ledger().reset_peaks();
    model.gradients();
    return cpu_ledger().peak();
  };
  const int64_t kept = peak(nullptr), waiting = peak(std::make_unique<HostStore>(at::kCPU, false)),
                ahead = peak(std::make_unique<HostStore>(at::kCPU, true));
  const int64_t inputs = s.train.micro_batch * s.train.sequence * s.model.d_model * 4;
  const int64_t coded = peak(
      std::make_unique<CompressedStore>(BlockCode::int8, 256, std::make_unique<HostStore>(at::kCPU, true)));
  EXPECT_LE(coded, waiting + inputs) << "a byte for four of each of two blocks, and one of them decoded";
  EXPECT_LE(ahead, waiting + 2 * inputs);
  EXPECT_LT(ahead, kept - 4 * inputs);
}

// All readers share one fetched tensor. A reader that writes to it, as the expert block does, must be the
// last.
TEST(FetchAhead, WhatWasWrittenToIsNotReadAgain) {
  const auto store = std::make_unique<HostStore>(at::kCPU, true);
  const auto stored = store->store(at::ones({300}));
  const at::Tensor bytes = stored->fetched();
  EXPECT_TRUE(stored->fetched().is_same(bytes));
  bytes.view(at::kFloat).add_(1);
  EXPECT_THROW(stored->fetched(), c10::Error);
}

// What stores hold on the device, by the ledger of `device`, while ten tensors of the last block follow ten
// of other blocks. Each tensor is dropped once stored.
std::vector<int64_t> held_while_storing(c10::Device device, std::unique_ptr<TensorStore> store) {
  constexpr int64_t kFloats = 1024;
  const auto allocated = [&] { return device_memory(device).allocated / (4 * kFloats); };
  const int64_t before = allocated();
  std::vector<std::unique_ptr<StoredTensor>> stored;
  std::vector<int64_t> held;
  for (int i = 0; i < 20; ++i) {
    if (i % 5 == 0 && i <= 10) store->begin_block(i == 10);
    stored.push_back(store->store(at::empty({kFloats}, at::TensorOptions(device).dtype(at::kFloat))));
    held.push_back(allocated() - before);
  }
  stored[19]->fetched();  // backward begins
  held.push_back(allocated() - before);
  for (size_t i = 0; i < 10; ++i) stored[i]->fetched();  // all have come
  stored.clear();
  held.push_back(allocated() - before);
  return held;
}

// Of the tensors that leave, four may still be on their way, in a dry run too. Those of the last block stay,
// and backward begins with them and the block before.
TEST(FetchAhead, FourTensorsAreOnTheirWayAndTheLastBlockStays) {
  install_allocators();
  const TemporaryFolder folder;
  const std::vector<int64_t> want = {1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 6, 7, 8, 9, 10, 15, 0};
  for (const c10::DeviceType type : {c10::kCPU, c10::kMeta}) {
    EXPECT_EQ(held_while_storing(type, std::make_unique<HostStore>(type, true)), want) << type;
    EXPECT_EQ(held_while_storing(type, std::make_unique<NvmeStore>(folder.path(), 64 << 10, 3, type, true)),
              want)
        << type;
  }
  const std::vector<int64_t> none(want.size(), 0);
  EXPECT_EQ(held_while_storing(at::kCPU, std::make_unique<HostStore>(at::kCPU, false)), none);
}

// Nor do tensors stay that nobody reads, as when a step throws before its backward pass.
TEST(FetchAhead, WhatIsDroppedUnreadLeavesTheDevice) {
  install_allocators();
  HostStore store(at::kCPU, true);
  const int64_t before = cpu_ledger().allocated();
  std::unique_ptr<StoredTensor> stored = store.store(at::empty({1024}));
  EXPECT_GT(cpu_ledger().allocated(), before);
  stored.reset();
  EXPECT_EQ(cpu_ledger().allocated(), before);
}

// A tensor that stays has the same bytes, whatever its layout, and is not to be written to either.
TEST(FetchAhead, WhatStaysIsTheTensorItself) {
  HostStore store(at::kCPU, true);
  store.begin_block(true);
  const at::Tensor whole = at::rand({40, 30}), part = whole.narrow(0, 10, 20).t();
  const auto stored = store.store(part);
  const at::Tensor bytes = stored->fetched();
  EXPECT_EQ(bytes.const_data_ptr(), part.const_data_ptr());
  EXPECT_TRUE(at::equal(bytes.view(at::kFloat).as_strided(part.sizes(), part.strides()), part));
  at::Tensor copy = at::empty_strided(part.sizes(), part.strides());
  stored->read(copy);
  EXPECT_TRUE(at::equal(copy, part));
  whole.add_(1);
  EXPECT_THROW(stored->fetched(), c10::Error);
}

// With three tiles, and reused places in the file.
TEST(FetchAhead, MoreThanTheTilesHoldComesBackInAnyOrder) {
  const TemporaryFolder folder;
  const auto store = store_ahead(false, folder);
  std::vector<std::unique_ptr<StoredTensor>> stored;
  for (int i = 0; i < 20; ++i) stored.push_back(store->store(at::full({50000}, i, at::kFloat)));
  stored.erase(stored.begin(), stored.begin() + 10);
  for (int i = 19; i >= 10; --i) {
    const at::Tensor bytes = stored[static_cast<size_t>(i - 10)]->fetched();
    EXPECT_TRUE(at::equal(bytes.view(at::kFloat), at::full({50000}, i, at::kFloat))) << i;
  }
}

// A chain of products standing in for a model of blocks.
struct Chain {
  Chain(int64_t layers, c10::Device device, c10::ScalarType type) {
    at::manual_seed(7);
    for (int64_t i = 0; i < layers; ++i) {
      const at::Tensor w = (at::randn({192, 192}) / 14).to(device, type).requires_grad_();
      parameters.push_back({"blocks." + std::to_string(i) + ".w", w, w, {}, true, false});
    }
    x = at::randn({4, 64, 192}).to(device, type);
  }

  std::vector<at::Tensor> gradients(const Settings& s, std::unique_ptr<TensorStore> store) {
    SavedTensors saved(std::move(store), parameters);
    RecomputeRunner runner(recomputed_layers(s.activations, static_cast<int64_t>(parameters.size())));
    std::vector<at::Tensor> all;
    for (int step = 0; step < 3; ++step) {
      at::Tensor y = x.detach().requires_grad_();
      const SavedTensors::Scope scope(saved);
      for (size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor zero = at::zeros({}, x.options().dtype(at::kFloat));
        y = runner
                .run(static_cast<int64_t>(i), y,
                     [this, i, zero](const at::Tensor& in, RoutingState&) {
                       return BlockOutput{at::gelu(at::matmul(in, parameters[i].value)).add(in), zero, zero};
                     })
                .x_BSD;
      }
      torch::autograd::backward({y.to(at::kFloat).square().mean()}, {});
      for (Parameter& p : parameters) all.push_back(std::exchange(p.value.mutable_grad(), {}).cpu());
    }
    return all;
  }

  std::vector<Parameter> parameters;
  at::Tensor x;
};

void expect_neutral(c10::Device device) {
  const TemporaryFolder folder;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const char* checkpoint : {"none", "full", "every"}) {
      const Settings s = settings_with({std::string("activations.checkpoint=") + checkpoint});
      Chain chain(6, device, type);
      const auto kept = chain.gradients(s, nullptr);
      for (const char* storage : {"host", "nvme"}) {
        Settings away =
            settings_with({std::string("activations.storage=") + storage,
                           "placement.nvme_path=" + folder.string(), "placement.nvme_block=64KiB"});
        const auto got = chain.gradients(s, make_tensor_store(away, device));
        ASSERT_EQ(got.size(), kept.size());
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(test::bitwise_equal(got[i], kept[i])) << storage << checkpoint << i;
      }
    }
  }
}

TEST(FetchAhead, AChainOfBlocksIsBitwiseTheSame) { expect_neutral(at::kCPU); }

TEST(FetchAheadCuda, AChainOfBlocksIsBitwiseTheSame) {
  MOELAB_NEEDS_CUDA();
  expect_neutral(c10::Device(c10::kCUDA, 0));
}

// However late the copies come, four tensors at most wait for them on the device, nothing else keeps their
// memory from being used again, and what comes back is what left.
TEST(FetchAheadCuda, CopiesThatComeLateHoldFourTensors) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  const c10::Device device(c10::kCUDA, 0);
  constexpr int64_t kFloats = 4 << 20, kTensors = 12;  // a block of the allocator's each
  HostStore store(device, true);
  release_cached(device);
  const DeviceMemory before = device_memory(device);
  reset_peaks(device);
  std::vector<std::unique_ptr<StoredTensor>> stored;
  for (int64_t i = 0; i < kTensors; ++i) {
    if (i % 2 == 0) store.begin_block(false);
    stored.push_back(store.store(at::full({kFloats}, i, at::TensorOptions(device).dtype(at::kFloat))));
  }
  const DeviceMemory after = device_memory(device);
  EXPECT_EQ(after.peak - before.allocated, 5 * 4 * kFloats);  // and the one that is made
  EXPECT_EQ(after.reserved_peak - before.reserved, 5 * 4 * kFloats);
  for (int64_t i = kTensors - 1; i >= 0; --i) {
    EXPECT_EQ(squared_norm(stored.back()->fetched().view(at::kFloat)), static_cast<double>(i * i * kFloats));
    stored.pop_back();
  }
}

// A tensor that was fetched with its block and is dropped unread: its memory is used again only behind the
// copy to it. In the first step giving its own host memory back waits; later all share a slab.
TEST(FetchAheadCuda, WhatIsDroppedUnreadIsNotWrittenToLater) {
  MOELAB_NEEDS_CUDA();
  const c10::Device device(c10::kCUDA, 0);
  const at::TensorOptions bytes = at::TensorOptions(device).dtype(at::kByte);
  constexpr int64_t kBytes = 4 << 20;
  HostStore store(device, true);
  for (int step = 0; step < 3; ++step) {
    std::vector<std::unique_ptr<StoredTensor>> stored;
    for (int i = 0; i < 2; ++i) {
      store.begin_block(false);
      stored.push_back(store.store(at::full({kBytes}, i, bytes)));
    }
    stored[1]->fetched();  // and the block before it
    stored.clear();
    std::vector<at::Tensor> next;
    for (int i = 0; i < 4; ++i) next.push_back(at::full({kBytes}, 7, bytes));
    for (const at::Tensor& one : next) EXPECT_TRUE(one.cpu().eq(7).all().item<bool>());
    store.begin_block(false);
    store.store(next[0])->fetched();  // behind all earlier copies
    for (const at::Tensor& one : next) EXPECT_TRUE(one.cpu().eq(7).all().item<bool>()) << step;
  }
}

// The slab is allocated in the second step; after that, neither host nor device memory grows.
TEST(FetchAheadCuda, HostMemoryIsMadeOnce) {
  MOELAB_NEEDS_CUDA();
  install_allocators();
  const c10::Device device(c10::kCUDA, 0);
  Chain chain(6, device, at::kFloat);
  auto store = std::make_unique<HostStore>(device, true);
  const int64_t before = cpu_ledger(Home::host).allocated();
  {
    std::vector<std::unique_ptr<StoredTensor>> stored;
    for (int i = 0; i < 8; ++i) stored.push_back(store->store(chain.x));
  }
  EXPECT_EQ(cpu_ledger(Home::host).allocated(), before);
  for (int step = 0; step < 3; ++step) {
    std::vector<std::unique_ptr<StoredTensor>> stored;
    for (int i = 0; i < 8; ++i) stored.push_back(store->store(chain.x));
    const auto bytes = static_cast<int64_t>(8 * chain.x.nbytes());
    const int64_t held = cpu_ledger(Home::host).allocated() - before;
    EXPECT_GE(held, bytes);
    EXPECT_LE(held, bytes + bytes / 20);
    EXPECT_TRUE(at::equal(stored[3]->fetched().view(at::kFloat), chain.x.flatten()));
  }
}

}  // namespace
}  // namespace moelab
