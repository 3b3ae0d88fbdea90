#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/operator/variants.h"

// What the variants of an operator are compared and timed by.
namespace moelab {

using Results = std::vector<at::Tensor>;

// A call of an operator on inputs that are always the same.
struct Trial {
  std::function<void()> restore;  // gives inputs that `call` overwrites their values again
  std::function<Results()> call;  // the chosen variant
  std::function<Results()>
      reference;      // what it computes, by LibTorch's operators in fp32; null: ask the plain variant
  int64_t terms = 1;  // of its longest sum in fp32
};

struct OperatorProbe {
  VariedOperator* op;
  std::string inputs;           // what is special about them, for people
  std::function<Trial()> make;  // allocates the inputs
  bool is_timed = false;
};

}  // namespace moelab
