#include "kernels/moe/grouped_products.h"

#include "kernels/operator/gpu.h"

namespace moelab {
namespace {

bool never(c10::Device, at::ScalarType, int64_t, int64_t, int64_t) { return false; }

}  // namespace

// Before Hopper, and in other types, each grouped product reads the offsets on the host. On Blackwell experts
// without rows got gradients (LibTorch's issue 172439).
bool serves_grouped_products(c10::Device gpu, at::ScalarType type, int64_t E, int64_t D, int64_t F) {
  return type == at::kBFloat16 && E < 1024 && D % 8 == 0 && F % 8 == 0 && compute_capability(gpu) / 10 == 9;
}

Variants<bool(c10::Device, at::ScalarType, int64_t, int64_t, int64_t)> has_grouped_products(
    "expert_products", {{"plain", &never}, {"grouped", &serves_grouped_products}});

}  // namespace moelab
