#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace moelab {

// One step's numbers for every update rule; each rule says which of them it reads.
struct OptimizerStep {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;    // decoupled: the weight shrinks by lr * weight_decay
  int64_t step = 1;           // counted from 1, for the bias correction
  double gradient_scale = 1;  // multiplies the gradient first: clipping, loss scale, mean over micro-batches
  int64_t stream = 0;         // of random numbers, one per parameter, for rules that round stochastically
  int64_t first_element = 0;  // a part's offset in its parameter, so that it draws the whole's numbers
  // A CapturableStep on the weights' device (kernels/update/capturable_step.h). If defined, its lr, step and
  // gradient scale replace those above when the step runs, and it decides whether the step is skipped.
  at::Tensor live = {};
};

// The step as operator arguments: "float[] numbers, int[] counters, Tensor? live".
struct StepArguments {
  explicit StepArguments(const OptimizerStep& s)
      : numbers{s.lr, s.beta1, s.beta2, s.eps, s.weight_decay, s.gradient_scale},
        counters{s.step, s.stream, s.first_element} {
    if (s.live.defined()) live = s.live;
  }
  std::array<double, 6> numbers;
  std::array<int64_t, 3> counters;
  std::optional<at::Tensor> live;
};
inline OptimizerStep step_from(at::ArrayRef<double> n, at::IntArrayRef c) {
  TORCH_CHECK(n.size() == 6 && c.size() == 3 && c[0] >= 1 && c[2] >= 0,
              "optimizer step: six numbers, three counters, from 1");
  return {.lr = n[0],
          .beta1 = n[1],
          .beta2 = n[2],
          .eps = n[3],
          .weight_decay = n[4],
          .step = c[0],
          .gradient_scale = n[5],
          .stream = c[1],
          .first_element = c[2]};
}

// The step that an operator takes on the CPU, with the numbers of `live` if given; nothing: it is skipped.
std::optional<OptimizerStep> step_now(at::ArrayRef<double> numbers, at::IntArrayRef counters,
                                      const std::optional<at::Tensor>& live);

// Throws c10::Error unless the tensors are contiguous, of one size and of these types: weights fp32, or bf16
// without a compute copy; gradient fp32, bf16 or fp16; compute copy bf16 or fp16.
void check_step(const char* rule, const at::Tensor& weights, const at::Tensor& gradient,
                const std::optional<at::Tensor>& compute_copy);
// Throws c10::Error unless `state` is contiguous, of this type and of `elements`.
void check_state(const char* rule, const char* name, const at::Tensor& state, at::ScalarType dtype,
                 int64_t elements);

}  // namespace moelab
