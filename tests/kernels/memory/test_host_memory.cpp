#include "kernels/memory/host_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/memory/copy_stream.h"
#include "kernels/memory/ledger.h"
#include "tests/cuda_device.h"

namespace moelab {
namespace {

TEST(HostMemory, BeginsWhereAskedAndCountsOnTheHost) {
  install_allocators();
  for (const auto type : {c10::kCPU, c10::kMeta}) {
    const c10::Device device(type);
    Ledger &host = type == c10::kCPU ? cpu_ledger(Home::host) : meta_ledger(Home::host),
           &inside = type == c10::kCPU ? cpu_ledger() : meta_ledger();
    const int64_t before = host.allocated(), device_before = inside.allocated();
    const KindScope kind(Kind::gradients);
    for (const int64_t alignment : {64, 4096}) {
      for (const int64_t bytes : {0, 1, 4096, 100001}) {
        const at::Tensor memory = host_memory(bytes, device, alignment);
        EXPECT_EQ(memory.numel(), bytes);
        EXPECT_EQ(memory.scalar_type(), at::kByte);
        const int64_t taken = host.allocated() - before;
        EXPECT_GE(taken, bytes);
        EXPECT_LE(taken, bytes + (alignment > 64 ? alignment : 0));
        EXPECT_EQ(host.by_kind()[static_cast<size_t>(Kind::gradients)], taken);
        if (type == c10::kCPU && bytes > 0) {
          EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data_ptr()) % static_cast<uintptr_t>(alignment), 0);
        }
      }
    }
    EXPECT_EQ(host.allocated(), before);
    EXPECT_EQ(inside.allocated(), device_before);
  }
}

TEST(HostMemoryCuda, IsPinnedAndNotRoundedUp) {
  MOELAB_NEEDS_CUDA();
  install_allocators();
  at::globalContext().lazyInitDevice(c10::kCUDA);  // before that LibTorch reports no memory as pinned
  Ledger& host = cpu_ledger(Home::host);
  const int64_t before = host.allocated();
  for (const int64_t bytes : {1, 5000, (1 << 20) + 1}) {
    const at::Tensor memory = host_memory(bytes, c10::Device(c10::kCUDA, 0));
    EXPECT_TRUE(memory.is_pinned());
    EXPECT_EQ(memory.numel(), bytes);
    EXPECT_LE(host.allocated() - before, bytes + 2 * 4096);
  }
  EXPECT_EQ(host.allocated(), before);
}

TEST(CopyStream, OnTheCpuACopyIsDoneAtOnce) {
  CopyStream copies(at::kCPU);
  const at::Tensor from = at::arange(100), to = at::zeros({100}, at::kFloat),
                   bytes = at::zeros({100}, at::kLong);
  copies.follow();
  copies.copy(to, from);
  copies.copy(bytes.mutable_data_ptr(), from.const_data_ptr(), static_cast<int64_t>(from.nbytes()));
  EXPECT_TRUE(at::equal(to, from.to(at::kFloat)));
  EXPECT_TRUE(at::equal(bytes, from));
  EXPECT_EQ(copies.mark(), nullptr);
}

// A copy reads what was written before it, and later writes wait for the copy: many times over, in memory
// that is freed and handed out again.
TEST(CopyStreamCuda, CopiesAndKernelsWaitForEachOther) {
  MOELAB_NEEDS_CUDA();
  const c10::Device device(c10::kCUDA, 0);
  constexpr int64_t kCount = 1 << 22;
  CopyStream copies(device);
  const at::Tensor host = host_memory(kCount * 4, device).view(at::kFloat);
  for (int i = 0; i < 20; ++i) {
    {
      const at::Tensor made = at::full({kCount}, i, at::TensorOptions(device).dtype(at::kFloat)).mul(2);
      copies.follow();
      copies.copy(host.mutable_data_ptr(), made.const_data_ptr(), kCount * 4);
      copies.keep(made);
    }
    at::full({kCount}, -1, at::TensorOptions(device).dtype(at::kFloat));
    const at::Tensor back = at::empty({kCount}, at::TensorOptions(device).dtype(at::kFloat));
    copies.follow();
    copies.copy(back.mutable_data_ptr(), host.const_data_ptr(), kCount * 4);
    const CopyStream::Mark there = copies.mark();
    copies.wait(there);
    EXPECT_TRUE(back.eq(2 * i).all().item<bool>()) << i;
  }
  copies.synchronize();
  EXPECT_TRUE(host.eq(38).all().item<bool>());
}

}  // namespace
}  // namespace moelab
