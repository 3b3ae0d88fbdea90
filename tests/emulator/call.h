#pragma once
#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <vector>

// The tensors of one call of an operator, on the emulated device and on another: the host, where tensors
// share the memory of the device's, or meta, where they have none and show what shapes the results have.
namespace moelab::emulator {

inline constexpr c10::DispatchKeySet kDevice(c10::DispatchKey::CUDA);
at::Allocator* device_allocator();

class Call {
 public:
  // `late`: the call is made when the caller may have written to its tensors of the host, or let them go.
  explicit Call(c10::DeviceType side, bool late = false) : side_(side), late_(late) {}

  bool on_device = false;  // whether an argument is, or names the device

  c10::IValue twin(const c10::IValue& value);
  // What the call gave, on the device: a result that shares memory with an argument becomes a view of that
  // argument, any other gets memory of its own, from the host with its contents.
  c10::IValue to_device(const c10::IValue& value);
  at::Tensor to_device(const at::Tensor& twin);
  bool is_of_argument(const at::Tensor& twin) const;

 private:
  struct Pair {
    at::Tensor real, twin;
  };

  at::Tensor twin_of(const at::Tensor& real);
  at::Tensor new_twin(const at::Tensor& real) const;
  at::Tensor written(const Pair& pair) const;

  c10::DeviceType side_;
  bool late_;
  std::vector<Pair> pairs_;
};

}  // namespace moelab::emulator
