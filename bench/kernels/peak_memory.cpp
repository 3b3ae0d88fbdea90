#include "bench/kernels/peak_memory.h"

#include <algorithm>

#include "kernels/memory/device_memory.h"

namespace moelab::bench {
namespace {

int64_t highest = 0;  // over the windows since Start()

}  // namespace

PeakMemory::Window::Window(c10::Device device) : device_(device), before_(device_memory(device).allocated) {
  reset_peaks(device);
}

PeakMemory::Window::~Window() { highest = std::max(highest, device_memory(device_).peak - before_); }

void PeakMemory::Start() { highest = 0; }

void PeakMemory::Stop(Result& result) { result.max_bytes_used = highest; }

}  // namespace moelab::bench
