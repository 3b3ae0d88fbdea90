#pragma once
#include <benchmark/benchmark.h>

#include <cstdint>

namespace moelab::bench {

// Peak memory for Google Benchmark ("max_bytes_used"), from the memory ledger and exact in requested bytes:
// what is held at the peak beside the inputs. Of a forward that is its result, what it keeps for backward and
// its scratch; of a backward the same over the forward and itself. The ledger counts bytes, not blocks, so
// "allocs_per_iter" says 0.
class PeakMemory final : public benchmark::MemoryManager {
 public:
  // Lives as long as a benchmark's loop; its inputs were made before.
  class Window {
   public:
    Window();
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

   private:
    int64_t before_;
  };

  void Start() override;
  void Stop(Result* result) override { Stop(*result); }
  void Stop(Result& result) override;
};

}  // namespace moelab::bench
