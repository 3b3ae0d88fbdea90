#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "kernels/moe/expert_variants.h"
#include "kernels/operator/architectures.h"

// The program with one more variant of combine_rows, "planted", which does what MOELAB_PLANTED says: wrong,
// crashes, hangs. Its name stands after the right ones, so that it would be kept if it agreed.
namespace moelab {
namespace {

using cuda::Element;

void forgets_weights(Element element, const void* from, const int32_t* row, const float*, int64_t tokens,
                     int64_t K, int64_t D, void* to, cudaStream_t stream) {
  cuda::combine_rows_packed[1](element, from, row, nullptr, tokens, K, D, to, stream);
}

void crashes(Element, const void*, const int32_t*, const float*, int64_t, int64_t, int64_t, void*,
             cudaStream_t) {
  std::raise(SIGSEGV);
}

void hangs(Element, const void*, const int32_t*, const float*, int64_t, int64_t, int64_t, void*,
           cudaStream_t) {
  while (true) ::pause();
}

bool plant() {
  const char* const planted = std::getenv("MOELAB_PLANTED");
  if (planted == nullptr) return false;
  const std::string does = planted;
  cuda::combine_rows.add("planted", does == "wrong" ? &forgets_weights : does == "hangs" ? &hangs : &crashes);
  return true;
}

}  // namespace

// In the place of architectures.cpp. Each process asks it before it uses the GPU, when all operators are
// there.
std::string built_architectures() {
  [[maybe_unused]] static const bool once = plant();
  return "80 86 89 90a 100 120";
}

}  // namespace moelab
