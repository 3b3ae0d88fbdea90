#pragma once
#include <cstdint>

namespace moelab::test {

// How often this process, in any library and on any thread, has called a function of the CUDA runtime that
// waits for the device or copies from it to host memory. A copy and the wait for it are one.
int64_t cuda_waits();

}  // namespace moelab::test
