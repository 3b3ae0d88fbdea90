#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>

#include "kernels/memory/ledger.h"
#include "tests/kernels/reference.h"
#include "train/activations/saved_tensors.h"

// Which tensors the policy hands to its store, and what autograd gets back.
namespace moelab {
namespace {

using at::Tensor;

// Stores copies, and counts those that exist.
struct CountingStore : TensorStore {
  struct Held : StoredTensor {
    Held(const Tensor& dense, int& alive) : copy(dense.clone()), alive(alive) { ++alive; }
    ~Held() override { --alive; }
    void read(const Tensor& to) override {
      std::memcpy(to.mutable_data_ptr(), copy.const_data_ptr(), copy.nbytes());  // clone keeps the strides
    }
    Tensor copy;
    int& alive;
  };
  explicit CountingStore(int& alive) : alive(alive) {}
  std::unique_ptr<StoredTensor> store(const Tensor& dense) override {
    EXPECT_TRUE(dense.is_non_overlapping_and_dense());
    return std::make_unique<Held>(dense, alive);
  }
  int& alive;
};

class Policy : public testing::Test {
 protected:
  Tensor leaf(const std::vector<int64_t>& sizes) { return at::randn(sizes).requires_grad_(); }
  void backward(const Tensor& y) { torch::autograd::backward({y.sum()}, {}); }

  int alive = 0;
  std::vector<Parameter> parameters{{"w", at::randn({64, 64}).requires_grad_(), {}, {}}};
  SavedTensors saved{std::make_unique<CountingStore>(alive), parameters};
};

TEST_F(Policy, ATensorSavedTwiceIsStoredOnce) {
  const Tensor x = leaf({40, 64});
  Tensor y;
  {
    const SavedTensors::Scope scope(saved);
    const Tensor a = x * 2;  // saves nothing of a
    y = a.sin() + a.cos() + a.view({64, 40}).exp().view({40, 64}) + a.flatten().square().view({40, 64});
  }
  // a is saved by sin, cos and square, in three shapes; exp saves its result
  EXPECT_EQ(saved.stored_tensors(), 2);
  EXPECT_EQ(saved.stored_bytes(), 2 * 40 * 64 * 4);
  EXPECT_EQ(alive, 2);
  backward(y);
  const Tensor a = x.detach() * 2;
  EXPECT_TRUE(at::allclose(x.grad(), 2 * (a.cos() - a.sin() + a.exp() + 2 * a), 1e-5, 1e-5));
  EXPECT_EQ(alive, 0);
}

TEST_F(Policy, AnotherTensorAtTheSameAddressIsStoredToo) {
  install_allocators();  // this allocator reuses freed blocks
  const Tensor x = leaf({40, 64});
  Tensor y;
  {
    const SavedTensors::Scope scope(saved);
    y = (x * 2).sin();
    for (int i = 3; i < 20; ++i) y = y + (x * i).sin();
  }
  EXPECT_EQ(saved.stored_tensors(), 18);
  backward(y);
  Tensor want = at::zeros_like(x);
  for (int i = 2; i < 20; ++i) want += i * (x.detach() * i).cos();
  EXPECT_TRUE(at::allclose(x.grad(), want, 1e-4, 1e-4));
}

// f(x) is computed once for forward and once for each saved reference; x is stored in its place.
TEST_F(Policy, ARecomputedTensorIsMadeAnewForEachReader) {
  const Tensor x = leaf({40, 64});
  for (const bool storing : {true, false}) {
    SavedTensors policy(storing ? std::make_unique<CountingStore>(alive) : nullptr, parameters);
    x.mutable_grad().reset();
    int calls = 0;
    Tensor y;
    {
      const SavedTensors::Scope scope(policy);
      const Tensor a = x * 2;
      const Tensor b = SavedTensors::recompute_for_readers(a, [&](const Tensor& in) {
        ++calls;
        return in + 1;
      });
      y = b.sin() + b.view({64, 40}).cos().view({40, 64}) + a.sin();
    }
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(policy.stored_tensors(), storing ? 1 : 0);  // a
    backward(y);
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(alive, 0);
    const Tensor a = x.detach() * 2, b = a + 1;
    EXPECT_TRUE(at::allclose(x.grad(), 2 * (b.cos() - b.sin() + a.cos()), 1e-5, 1e-5));
  }
}

TEST_F(Policy, ARecomputedTensorWhoseInputHasChangedIsRefused) {
  const auto twice = [](const Tensor& in) { return in * 2; };
  const Tensor x = leaf({40, 64});
  SavedTensors policy(nullptr, parameters);
  const SavedTensors::Scope scope(policy);
  Tensor a = x * 2;
  const Tensor y = SavedTensors::recompute_for_readers(a, twice).sin();
  a.add_(1);
  EXPECT_THROW(backward(y), c10::Error);
}

TEST_F(Policy, OutsideOfAScopeNothingIsRecomputed) {
  int calls = 0;
  const auto twice = [&](const Tensor& in) {
    ++calls;
    return in * 2;
  };
  backward(SavedTensors::recompute_for_readers(leaf({40, 64}), twice).sin());
  EXPECT_EQ(calls, 1);
}

TEST_F(Policy, ParametersIndicesAndSmallTensorsStayAsTheyAre) {
  const Tensor x = leaf({128, 64}), small = leaf({255}), large = leaf({256});
  const Tensor ids = at::arange(128).flip(0);
  Tensor y;
  {
    const SavedTensors::Scope scope(saved);
    y = at::linear(x, parameters[0].value).sum() + x.index_select(0, ids).sum() + small.sin().sum();
    EXPECT_EQ(saved.stored_tensors(), 1);  // x
    y = y + large.sin().sum();
  }
  EXPECT_EQ(saved.stored_tensors(), 2);
  EXPECT_EQ(saved.stored_bytes(), (128 * 64 + 256) * 4);
  backward(y);
  EXPECT_TRUE(at::allclose(large.grad(), large.detach().cos()));
  EXPECT_TRUE(at::allclose(small.grad(), small.detach().cos()));
}

TEST_F(Policy, StridesAndViewsWithGapsComeBackAsTheyWere) {
  const Tensor x = leaf({32, 48});
  Tensor y;
  {
    const SavedTensors::Scope scope(saved);
    const Tensor a = x * 1;
    y = a.t().sin().t() + at::cat({a.narrow(1, 8, 24).sin(), a.narrow(1, 0, 24).cos()}, 1);
  }
  EXPECT_EQ(saved.stored_tensors(), 3);
  backward(y);
  const Tensor a = x.detach();
  Tensor want = a.cos();
  want.narrow(1, 8, 24) += a.narrow(1, 8, 24).cos();
  want.narrow(1, 0, 24) -= a.narrow(1, 0, 24).sin();
  EXPECT_TRUE(at::allclose(x.grad(), want, 1e-5, 1e-6));
}

TEST_F(Policy, WhatExpandRepeatsIsKept) {
  const Tensor x = leaf({1, 512});
  Tensor y;
  {
    const SavedTensors::Scope scope(saved);
    y = (x * 1).expand({64, 512}).sin();
  }
  EXPECT_EQ(saved.stored_tensors(), 0);
  backward(y);
  EXPECT_TRUE(at::allclose(x.grad(), 64 * x.detach().cos(), 1e-4, 1e-4));
}

TEST_F(Policy, ATensorChangedInPlaceIsAnotherAndAKeptOneIsRefused) {
  const Tensor x = leaf({512}), small = leaf({16});
  Tensor y, z;
  {
    const SavedTensors::Scope scope(saved);
    Tensor a = x * 1;
    const Tensor before = a.sin();
    a.add_(1);
    y = before + a.sin();
    Tensor b = small * 1;
    z = b.sin();
    b.add_(1);
  }
  EXPECT_EQ(saved.stored_tensors(), 2);
  backward(y);
  EXPECT_TRUE(at::allclose(x.grad(), x.detach().cos() + (x.detach() + 1).cos()));
  EXPECT_THROW(backward(z), c10::Error);
}

TEST_F(Policy, ASavedOutputDoesNotKeepItsGraphAlive) {
  const Tensor x = leaf({512}), small = leaf({16});
  c10::weak_intrusive_ptr<c10::TensorImpl> graph(x.getIntrusivePtr());
  {
    const SavedTensors::Scope scope(saved);
    const Tensor y = x.exp(), z = small.exp();
    EXPECT_EQ(alive, 1);
    graph = c10::weak_intrusive_ptr<c10::TensorImpl>(z.getIntrusivePtr());
  }
  EXPECT_EQ(alive, 0);
  EXPECT_TRUE(graph.expired());
}

TEST_F(Policy, OutsideOfAScopeNothingIsStored) {
  const Tensor x = leaf({512});
  { const SavedTensors::Scope scope(saved); }
  backward(x.sin());
  EXPECT_EQ(saved.stored_tensors(), 0);
  SavedTensors keeping(nullptr, parameters);
  const SavedTensors::Scope outer(saved);
  {
    const SavedTensors::Scope scope(keeping);
    backward(x.sin());
  }
  EXPECT_EQ(saved.stored_tensors(), 0);
  const Tensor y = x.sin();
  EXPECT_EQ(saved.stored_tensors(), 1);
}

}  // namespace
}  // namespace moelab
