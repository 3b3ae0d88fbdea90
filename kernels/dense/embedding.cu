#include "kernels/dense/embedding_device.h"

#include "kernels/device/launch.h"

namespace moelab::cuda {
namespace {

// One block of threads per token; Word is the widest type that divides a row. For ids out of range the CPU
// throws; here the kernel traps, as the loss does for such a target, and the next call that waits reports it.
template <class Word>
__global__ void gather_kernel(const Word* weight, int64_t vocabulary, const int64_t* ids, Word* out,
                              int64_t tokens, int64_t words) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    if (ids[t] < 0 || ids[t] >= vocabulary) __trap();
    const Word* row = weight + ids[t] * words;
    for (int64_t i = threadIdx.x; i < words; i += kRowThreads) out[t * words + i] = row[i];
  }
}

template <class Word>
void gather(const void* weight, int64_t vocabulary, const int64_t* ids, void* out, int64_t tokens,
            int64_t row_bytes, cudaStream_t stream) {
  gather_kernel<Word><<<grid_of(tokens), kRowThreads, 0, stream>>>(
      static_cast<const Word*>(weight), vocabulary, ids, static_cast<Word*>(out), tokens,
      row_bytes / static_cast<int64_t>(sizeof(Word)));
}

}  // namespace

void embedding(const void* weight, int64_t vocabulary, const int64_t* ids, void* out, int64_t tokens,
               int64_t row_bytes, cudaStream_t stream) {
  if (tokens == 0 || row_bytes == 0) return;
  // Weights may be views into a flat buffer: the address decides too.
  const auto misaligned = [&](int64_t bytes) {
    return row_bytes % bytes != 0 || reinterpret_cast<uintptr_t>(weight) % bytes != 0 ||
           reinterpret_cast<uintptr_t>(out) % bytes != 0;
  };
  if (!misaligned(16)) return gather<int4>(weight, vocabulary, ids, out, tokens, row_bytes, stream);
  if (!misaligned(4)) return gather<int32_t>(weight, vocabulary, ids, out, tokens, row_bytes, stream);
  gather<int16_t>(weight, vocabulary, ids, out, tokens, row_bytes, stream);
}

}  // namespace moelab::cuda
