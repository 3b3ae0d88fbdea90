#pragma once
#include <functional>

// CUDA graphs on the emulator: what is launched in a capture is recorded and not done, until the graph is
// replayed. at::cuda::CUDAGraph stands on it (capture.cpp).
namespace moelab::emulator {

bool capturing();
// The capture's next piece of work. It may not own memory of the device: that is the graph's pool's.
void record(std::function<void()> work);
// What waits for the device is no work for a graph: it breaks the capture off, as the runtime does.
void forbid_in_capture(const char* what);

}  // namespace moelab::emulator
