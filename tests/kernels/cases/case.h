#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

// Each header of this folder lists the cases of one operator, makes their inputs and states the work of a
// call. Tests and benchmarks share the lists, so that what is timed is also compared with a reference.
namespace moelab::test {

// Who runs a case. Only `bench`: too large for a float64 reference within a test's seconds. `gpu`: a
// benchmark that would take a CPU minutes. The benchmarks' own test runs the cases whose names begin with
// "small".
enum class Use { test, bench, both, gpu };

template <class Case>
std::vector<Case> cases_for(Use use, const std::vector<Case>& all) {
  std::vector<Case> chosen;
  for (const Case& c : all) {
    if (c.use == use || c.use == Use::both) chosen.push_back(c);
  }
  return chosen;
}

// Each case on the CPU, as listed, and on CUDA. Tests of the CUDA cases say MOELAB_NEEDS
// (tests/cuda_device.h).
template <class Case>
std::vector<Case> on_every_device(std::vector<Case> cases) {
  const size_t listed = cases.size();
  for (size_t i = 0; i < listed; ++i) {
    cases.push_back(cases[i]);
    cases.back().device = c10::Device(c10::kCUDA, 0);
  }
  return cases;
}

// The least work of one call, as forward_work(case) and backward_work(case) state it.
struct Work {
  double bytes = 0;                      // every operand read once, every result written once
  double flops = 0;                      // of matrix products, a multiply-add counts as two; 0: no products
  at::ScalarType products = at::kFloat;  // the type that the products are computed in
};

inline double element_bytes(at::ScalarType dtype) { return static_cast<double>(c10::elementSize(dtype)); }

inline std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "fp32";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    case at::kInt:
      return "int32";
    default:
      return c10::toString(dtype);
  }
}

// The name of a parameterised test's instance: without its type, and with it.
template <class Info>
std::string short_name(const Info& info) {
  return std::string(info.param.name) + (info.param.device.is_cuda() ? "_Cuda" : "");
}
template <class Info>
std::string case_name(const Info& info) {
  return short_name(info) + "_" + dtype_name(info.param.dtype);
}

}  // namespace moelab::test
