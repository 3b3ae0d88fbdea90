#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/meta/simulated_device.h"
#include "train/settings/settings.h"

namespace moelab {

// The GPU that a prediction for CUDA is for.
struct Gpu {
  std::string name = "a Hopper GPU";
  int capability = kHopper;  // compute capability, 10 * major + minor
  int64_t bytes = 0;         // its memory; 0: not known
};

// "9.0" for 90.
std::string capability_text(int capability);
// "RTX 4060 (compute capability 8.9)".
std::string text_of(const Gpu& gpu);

// The cards of the GPU presets, each with its nominal memory, in the order of the presets; none twice.
std::vector<Gpu> preset_gpus();

// The card that run.preset names, else a Hopper GPU.
Gpu gpu_of_preset(const Settings& settings);

// What CUDA keeps of a card's memory for a process that runs LibTorch, outside of every count of LibTorch's:
// driver state and loaded kernels. Not measured here: "around 400MB" with lazy loading of kernels, by a
// maintainer in https://github.com/pytorch/pytorch/issues/109888.
inline constexpr int64_t kContextBytes = 400'000'000;

// What cuBLAS keeps: a workspace for each thread that multiplies (forward's and autograd's), each of 32 MiB
// on Hopper and Blackwell, else of 8.125 MiB. Not measured here: read in LibTorch 2.11's
// aten/src/ATen/cuda/CublasHandlePool.cpp.
int64_t workspace_bytes(const Gpu& gpu);

}  // namespace moelab
