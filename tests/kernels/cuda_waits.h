#pragma once
#include <cstdint>

namespace moelab::test {

// How often this process, in whatever library and on whatever thread, has called a function of the CUDA
// runtime that waits for the device, or copied from or to the host's memory.
int64_t cuda_waits();

}  // namespace moelab::test
