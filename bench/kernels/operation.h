#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/kernels/cases/case.h"

namespace moelab::bench {

// An operator with its inputs, ready to be called repeatedly.
struct Operation {
  // One call. Returns the tensors that backward starts from; empty for an operator without backward.
  std::function<std::vector<at::Tensor>()> forward;
  std::vector<at::Tensor> gradients = {};  // with respect to what forward returns
  std::vector<at::Tensor> leaves = {};     // tensors that receive gradients; those are dropped between calls
};
using MakeOperation = std::function<Operation()>;

enum class Pass { forward, backward };

// Registers a benchmark "CASE/PASS" ("CASE" for an operator without backward). Only that pass is timed, with
// none of its data in the caches that seconds_of (timing.h) clears. Consecutive benchmarks of a case share
// their inputs. Counters: median_us; at the median GB/s and, where `work` has products, GFLOP/s; of_copy and
// of_gemm, their shares of the machine's rates (ceilings.h), and copy_GB/s, the copy's rate; from five calls
// on spread, (p90 - p10) / median.
void add_benchmark(const std::string& case_path, c10::Device device, Pass pass, bool has_backward,
                   const test::Work& work, const MakeOperation& make);

// Registers all benchmark cases of an operator, on a GPU also the GPU-only ones, as "NAME/CASE/DTYPE". The
// work is forward_work(case) and, if the operator has it, backward_work(case).
template <class Case>
void add_operator(const std::string& name, const std::vector<Case>& cases, c10::Device device,
                  Operation (*make)(const Case&)) {
  constexpr bool has_backward = requires(const Case& c) { backward_work(c); };
  for (Case c : cases) {
    if (c.use == test::Use::test || (c.use == test::Use::gpu && device.is_cpu())) continue;
    c.device = device;
    const std::string path = name + "/" + c.name + "/" + test::dtype_name(c.dtype);
    const MakeOperation operation = [make, c] { return make(c); };
    add_benchmark(path, device, Pass::forward, has_backward, forward_work(c), operation);
    if constexpr (has_backward) {
      add_benchmark(path, device, Pass::backward, has_backward, backward_work(c), operation);
    }
  }
}

void add_dense_operators(c10::Device device);      // norm, rotary embedding, attention, embedding, loss
void add_moe_operators(c10::Device device);        // router, dispatch, expert block
void add_optimizer_operators(c10::Device device);  // AdamW, gradient norm
void add_update_rules(c10::Device device);         // the other optimizers, stored activations

}  // namespace moelab::bench
