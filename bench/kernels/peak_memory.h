#pragma once
#include <benchmark/benchmark.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace moelab::bench {

// Peak memory for Google Benchmark ("max_bytes_used"): what is held at the peak beside the inputs, on the CPU
// from the memory ledger and exact in requested bytes, on CUDA what the caching allocator has given out. Of a
// forward that is its result, what it keeps for backward and its scratch; of a backward the same over the
// forward and itself. The ledger counts bytes, not blocks, so "allocs_per_iter" says 0.
class PeakMemory final : public benchmark::MemoryManager {
 public:
  // Lives as long as a benchmark's loop; its inputs were made before.
  class Window {
   public:
    explicit Window(c10::Device device);
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

   private:
    c10::Device device_;
    int64_t before_;
  };

  void Start() override;
  void Stop(Result* result) override { Stop(*result); }
  void Stop(Result& result) override;
};

}  // namespace moelab::bench
