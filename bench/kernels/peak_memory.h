#pragma once
#include <benchmark/benchmark.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace moelab::bench {

// Peak memory for Google Benchmark ("max_bytes_used"): bytes held at the peak in addition to the inputs. On
// the CPU they come from the memory ledger, exact in requested bytes; on CUDA they are what the caching
// allocator has given out. For a forward pass: its result, what it keeps for backward, and its scratch. For a
// backward pass: the peak over forward and backward together. The ledger counts bytes, not blocks, so
// "allocs_per_iter" says 0.
class PeakMemory final : public benchmark::MemoryManager {
 public:
  // Measures while it lives: create it after the inputs, keep it for the benchmark's loop.
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
