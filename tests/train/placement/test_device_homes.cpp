#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "kernels/memory/ledger.h"
#include "moe/parameter.h"
#include "tests/cuda_device.h"
#include "tests/kernels/reference.h"
#include "tests/temporary_folder.h"
#include "train/activations/recompute.h"
#include "train/optim/host_copy.h"
#include "train/optim/optimizer.h"
#include "train/placement/gather_runner.h"
#include "train/placement/state_gradients.h"
#include "train/settings/load.h"

// Weights, gradients and state off the device, for a chain of LibTorch's own products: the same cases on the
// CPU and on a GPU.
namespace moelab {
namespace {

using at::Tensor;
constexpr int64_t kLayers = 5, kWidth = 96;

Settings settings_of(const std::vector<std::string>& overrides, const TemporaryFolder& drive) {
  std::vector<std::string> all = {"model.layers=" + std::to_string(kLayers), "placement.nvme_block=16KiB"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  for (const std::string& one : overrides) {
    if (one.ends_with("=nvme")) {
      all.push_back("placement.nvme_path=" + drive.string());
      break;
    }
  }
  return load_settings({.config = "moe-pico", .overrides = all});
}

// A few training steps like Trainer's, with blocks x + gelu(x W).
struct Chain {
  Chain(const Settings& s, c10::Device device)
      : settings(s),
        gathered(s, device),
        file(make_state_file(s.placement, device)),
        optimizer(s.optim, keeps_masters(s), s.placement.optimizer, device, file),
        gradients(s.placement, device, optimizer, file),
        inner(recomputed_layers(s.activations, kLayers)) {
    at::manual_seed(11);
    const bool bf16 = s.precision.compute == ComputePrecision::bf16;
    for (int64_t i = 0; i < kLayers; ++i) {
      const Tensor master = (at::randn({kWidth, kWidth}) / 10).to(device);
      const Tensor value = (bf16 ? master.to(at::kBFloat16) : master).requires_grad_();
      Parameter p{"blocks." + std::to_string(i) + ".w", value, bf16 ? master : value, {}, true, false};
      optimizer.add(p);
      gathered.adopt(p);
      values.push_back(value);
    }
    x = at::randn({64, 1, kWidth}).to(device, values[0].scalar_type());
  }

  void step() {
    Tensor y = x.detach().requires_grad_();  // as an embedding's: with its gradient the first block is let go
    for (int64_t i = 0; i < kLayers; ++i) {
      const Tensor zero = at::zeros({}, x.options().dtype(at::kFloat));
      y = runner
              .run(i, y,
                   [this, i, zero](const Tensor& in, RoutingState&) {
                     return BlockOutput{at::gelu(at::matmul(in, values[static_cast<size_t>(i)])).add(in),
                                        zero, zero};
                   })
              .x_BSD;
    }
    const Tensor loss = y.to(at::kFloat).square().mean();
    losses.push_back(loss.item<double>());
    torch::autograd::backward({loss}, {});
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < values.size(); ++i) gradients.take(i);
    norms.push_back(gradients.sum_of_squares());
    for (size_t i = 0; i < values.size(); ++i)
      gathered.change(i, [&] { optimizer.step_parameter(i, 1e-2, 0.5); });
    gradients.drop();
  }

  std::vector<Tensor> weights() {
    std::vector<Tensor> all;
    for (size_t i = 0; i < values.size(); ++i)
      all.push_back(gathered.read(i, [&] { return optimizer.weights(i); }).cpu().clone());
    return all;
  }

  Settings settings;
  GatheredWeights gathered;
  std::shared_ptr<StateFile> file;
  Optimizer optimizer;
  GradientStore gradients;
  RecomputeRunner inner;
  GatherRunner runner{gathered, inner};
  std::vector<Tensor> values;
  Tensor x;
  std::vector<double> losses, norms;
};

void expect_same(const std::vector<std::string>& kept, const std::vector<std::string>& moved,
                 c10::Device device, c10::Device reference) {
  const TemporaryFolder drive;
  Chain one(settings_of(kept, drive), reference), other(settings_of(moved, drive), device);
  for (int step = 0; step < 4; ++step) {
    one.step();
    other.step();
  }
  const std::string& where = moved.back();
  EXPECT_EQ(one.losses, other.losses) << where;
  EXPECT_LT(one.losses.back(), one.losses.front());
  const auto a = one.weights(), b = other.weights();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::bitwise_equal(a[i], b[i])) << where << i;
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::string& b) {
  a.push_back(b);
  return a;
}

// Products run on the same device as before, so results must be bitwise the same.
void expect_neutral(c10::Device device) {
  for (const char* compute : {"fp32", "bf16"}) {
    for (const char* checkpoint : {"none", "full"}) {
      const std::vector<std::string> run = {std::string("precision.compute=") + compute,
                                            std::string("activations.checkpoint=") + checkpoint};
      for (const char* home : {"placement.parameters=host", "placement.parameters=nvme",
                               "placement.gradients=host", "placement.gradients=nvme"})
        expect_same(run, run + home, device, device);
    }
  }
}

TEST(DeviceHomes, WeightsAndGradientsAreBitwiseTheSame) { expect_neutral(at::kCPU); }

TEST(DeviceHomesCuda, WeightsAndGradientsAreBitwiseTheSame) {
  MOELAB_NEEDS_CUDA();
  expect_neutral(c10::Device(c10::kCUDA, 0));
}

// A step on the host gives the CPU's result, whatever the device computes.
void expect_the_cpus_steps(c10::Device device) {
  const TemporaryFolder drive;
  for (const std::string_view name : enum_names(OptimizerName{})) {
    for (const char* home : {"host", "nvme"}) {
      const std::vector<std::string> run = {"optim.name=" + std::string(name), "precision.compute=bf16"};
      Chain kept(settings_of(run, drive), at::kCPU),
          moved(settings_of(run + (std::string("placement.optimizer=") + home), drive), device);
      for (int step = 0; step < 3; ++step) {
        for (size_t i = 0; i < kept.values.size(); ++i) {
          at::manual_seed(static_cast<uint64_t>(100 * step) + i);
          const Tensor gradient = at::randn({kWidth, kWidth}, at::kBFloat16);
          kept.values[i].mutable_grad() = gradient;
          moved.values[i].mutable_grad() = gradient.to(device);
          for (Chain* chain : {&kept, &moved}) {
            const at::NoGradGuard no_grad;
            chain->gradients.take(i);
            chain->gradients.sum_of_squares();
            chain->optimizer.step_parameter(i, 1e-2, 1);
            chain->gradients.drop();
          }
        }
      }
      const auto a = kept.weights(), b = moved.weights();
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(test::bitwise_equal(a[i], b[i])) << name << home << i;
        EXPECT_TRUE(test::bitwise_equal(kept.values[i].detach(), moved.values[i].detach().cpu()))
            << name << home;
      }
    }
  }
}

TEST(DeviceHomes, AStepOnTheHostIsTheCpus) { expect_the_cpus_steps(at::kCPU); }

TEST(DeviceHomesCuda, AStepOnTheHostIsTheCpus) {
  MOELAB_NEEDS_CUDA();
  expect_the_cpus_steps(c10::Device(c10::kCUDA, 0));
}

// Device memory that a copy reads or writes and that is freed meanwhile is used again only behind the copy.
TEST(DeviceHomesCuda, MemoryOfACopyIsNotUsedAgainBeforeIt) {
  MOELAB_NEEDS_CUDA();
  const at::TensorOptions options = at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(at::kFloat);
  constexpr int64_t kFloats = 1 << 20;
  const auto all = [](const Tensor& t, float value) { return t.cpu().eq(value).all().item<bool>(); };
  HostCopy copies(options.device());
  Tensor from = at::full({kFloats}, 1, options);
  const Tensor host = copies.like(from, at::kFloat);
  copies.start(from, host);
  from.reset();
  const Tensor next = at::full({kFloats}, 2, options);
  EXPECT_TRUE(all(next, 2));
  copies.finish();
  EXPECT_TRUE(all(host, 1));

  Tensor to = at::empty({kFloats}, options);
  copies.start(host, to);
  to.reset();
  const Tensor after = at::full({kFloats}, 3, options);
  EXPECT_TRUE(all(after, 3));
  copies.finish();
  EXPECT_TRUE(all(after, 3));
}

// What reads a copy's destination on the device after join() reads what was copied.
TEST(DeviceHomesCuda, AJoinedCopyIsThere) {
  MOELAB_NEEDS_CUDA();
  const at::TensorOptions options = at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(at::kFloat);
  HostCopy copies(options.device());
  const Tensor to = at::zeros({1 << 10}, options), host = copies.like(to, at::kFloat);
  for (int i = 1; i < 10; ++i) {
    host.fill_(i);
    copies.start(host, to);
    copies.join();
    EXPECT_TRUE(to.cpu().eq(i).all().item<bool>()) << i;
  }
}

// Memory that weights are on their way to is used again only behind their copies, when a step that throws
// lets them go as well as when the run ends.
TEST(DeviceHomesCuda, WeightsThatAreLetGoOnTheirWayOverwriteNothing) {
  MOELAB_NEEDS_CUDA();
  const TemporaryFolder drive;
  const c10::Device device(c10::kCUDA, 0);
  const Settings settings = settings_of({"placement.parameters=host"}, drive);
  for (const bool ends : {false, true}) {
    auto chain = std::make_unique<Chain>(settings, device), twin = std::make_unique<Chain>(settings, device);
    for (int64_t i = 0; i < kLayers; ++i) chain->gathered.fetch(i);
    ends ? chain.reset() : chain->gathered.release_all();
    std::vector<Tensor> next;
    for (int64_t i = 0; i < 2 * kLayers; ++i)
      next.push_back(at::full({kWidth, kWidth}, 7, at::TensorOptions(device).dtype(at::kFloat)));
    for (const Tensor& one : next) EXPECT_TRUE(one.cpu().eq(7).all().item<bool>());
    at::detail::getCUDAHooks().deviceSynchronize(device.index());
    for (const Tensor& one : next) EXPECT_TRUE(one.cpu().eq(7).all().item<bool>());
    if (ends) continue;
    chain->step();
    twin->step();
    EXPECT_EQ(chain->losses, twin->losses);
  }
}

// Weights come into memory that the device may still be writing to for its last user: behind that.
TEST(DeviceHomesCuda, WeightsComeBehindTheLastUserOfTheirMemory) {
  MOELAB_NEEDS_CUDA();
  const TemporaryFolder drive;
  const c10::Device device(c10::kCUDA, 0);
  Chain chain(settings_of({"placement.parameters=host"}, drive), device);
  const std::vector<Tensor> before = chain.weights();
  for (int i = 0; i < 20; ++i) {
    at::full({kWidth, kWidth}, 7, at::TensorOptions(device).dtype(at::kFloat));
    chain.gathered.change(0, [] {});
  }
  EXPECT_TRUE(test::bitwise_equal(chain.weights()[0], before[0]));
}

// Weights leave the device between steps.
TEST(DeviceHomesCuda, WeightsLeaveTheDevice) {
  MOELAB_NEEDS_CUDA();
  install_allocators();
  const TemporaryFolder drive;
  const c10::Device device(c10::kCUDA, 0);
  Chain chain(settings_of({"placement.parameters=host"}, drive), device);
  chain.step();
  for (const Tensor& value : chain.values) EXPECT_EQ(value.storage().data_ptr().get(), nullptr);
  EXPECT_GE(cpu_ledger(Home::host).allocated(), kLayers * kWidth * kWidth * 4);
}

}  // namespace
}  // namespace moelab
