#pragma once

namespace moelab::cuda {

// The element types that the device code supports; .cu files include no torch header.
enum class Element { f32, bf16, f16 };

}  // namespace moelab::cuda
