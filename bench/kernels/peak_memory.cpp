#include "bench/kernels/peak_memory.h"

#include <algorithm>

#include "kernels/memory/ledger.h"

namespace moelab::bench {
namespace {

int64_t highest = 0;  // over the windows since Start()

}  // namespace

PeakMemory::Window::Window() : before_(cpu_ledger().allocated()) { cpu_ledger().reset_peaks(); }

PeakMemory::Window::~Window() { highest = std::max(highest, cpu_ledger().peak() - before_); }

void PeakMemory::Start() { highest = 0; }

void PeakMemory::Stop(Result& result) { result.max_bytes_used = highest; }

}  // namespace moelab::bench
