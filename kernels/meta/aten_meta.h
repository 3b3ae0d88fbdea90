#pragma once

namespace moelab {

// Registers Meta kernels of ATen operators, so that a training step on meta tensors allocates what it would
// allocate on the CPU: same shapes, strides, types and temporaries, except the scratch of libraries. They are
// operators without a Meta kernel in LibTorch 2.11's C++ (Python's torch has its own decompositions), and
// operators whose Meta kernel allocates other bytes than the CPU's: resize_, and sums that a backward pass
// takes in place. While meta stands for a GPU, softmax's backward allocates what CUDA's does. Call it once
// before the first meta tensor; safe to repeat.
void install_meta_kernels();

}  // namespace moelab
