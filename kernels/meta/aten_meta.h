#pragma once

namespace moelab {

// Registers Meta kernels of ATen operators so that a training step runs on meta tensors and allocates there
// what it would allocate on the CPU: same shapes, strides, types and temporaries, but for the scratch of
// libraries. They are the operators that have no Meta kernel in LibTorch 2.11's C++ (Python's torch takes
// them from its own decompositions), and two whose kernel books other bytes than the CPU's: resize_, and the
// sum of gradients in the autograd engine. Call it once before the first meta tensor; safe to repeat.
void install_meta_kernels();

}  // namespace moelab
