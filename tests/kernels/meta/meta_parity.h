#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/kernels/memory/allocator_fixture.h"

// Compares the Meta kernels with the CPU's: the same program on both must give the same shapes, strides and
// types, leave the same bytes allocated and have the same peak, exactly, except for the scratch of libraries.
namespace moelab {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// Makes a program's inputs on the device that it runs on.
struct Inputs {
  c10::Device device;
  at::ScalarType dtype;

  Tensor make(at::IntArrayRef sizes, at::ScalarType type) const {
    const Tensor t = at::empty(sizes, at::TensorOptions().dtype(type).device(device));
    return device.is_cpu() ? t.uniform_(-1, 1) : t;  // normal_ has its own temporaries
  }
  Tensor real(at::IntArrayRef sizes) const { return make(sizes, dtype); }
  Tensor leaf(at::IntArrayRef sizes) const { return real(sizes).requires_grad_(); }
  Tensor fp32(at::IntArrayRef sizes) const { return make(sizes, at::kFloat); }
  // Values 0 … high - 1; none on meta.
  Tensor ids(at::IntArrayRef sizes, int64_t high) const {
    const Tensor t = at::empty(sizes, at::TensorOptions().dtype(at::kLong).device(device));
    if (device.is_cpu()) t.random_(0, high);
    return t;
  }
};

using Program = std::function<Tensors(const Inputs&)>;
// Temporaries that only the CPU's kernel has (casts to fp32, a scalar made a tensor, a transposition's
// block), in bytes of its peak.
struct CpuOnly {
  int64_t fp32 = 0, bf16 = 0;
};
// Buffers that a library makes on the calling thread; their size depends on the processor and the threads.
inline constexpr CpuOnly kLibrary = {-1, -1};

struct Case {
  std::string name;
  Program run;
  CpuOnly cpu_only = {};
};

// Sizes of the programs: T tokens, D width, E experts, K a token, F hidden, V vocabulary.
inline constexpr int64_t T = 96, D = 64, E = 4, K = 2, F = 48, V = 160;

class MetaParity : public WithAllocators {
 protected:
  static void SetUpTestSuite();
  // Runs each case in fp32 and bf16.
  static void check(const std::vector<Case>& cases);
};

}  // namespace moelab
