#include "kernels/moe/grouped_products.h"

namespace moelab {
namespace {

ExpertProducts each(int, at::ScalarType, int64_t, int64_t, int64_t) { return ExpertProducts::each; }

ExpertProducts gathered(int capability, at::ScalarType type, int64_t, int64_t D, int64_t F) {
  return serves_gathered_products(capability, type, D, F) ? ExpertProducts::gathered : ExpertProducts::each;
}

ExpertProducts hopper(int capability, at::ScalarType type, int64_t E, int64_t D, int64_t F) {
  const ExpertProducts otherwise = gathered(capability, type, E, D, F);
  return capability == 90 && otherwise == ExpertProducts::gathered ? ExpertProducts::hopper : otherwise;
}

// Before Hopper, and in other types, each of LibTorch's grouped products reads the offsets on the host. On
// Blackwell experts without rows got gradients (LibTorch's issue 172439).
ExpertProducts grouped(int capability, at::ScalarType type, int64_t E, int64_t D, int64_t F) {
  const bool serves = type == at::kBFloat16 && E < 1024 && D % 8 == 0 && F % 8 == 0 && capability / 10 == 9;
  return serves ? ExpertProducts::grouped : hopper(capability, type, E, D, F);
}

}  // namespace

bool serves_gathered_products(int capability, at::ScalarType type, int64_t D, int64_t F) {
  return capability >= 80 && (type == at::kBFloat16 || type == at::kHalf) && D % 8 == 0 && F % 8 == 0;
}

Variants<ExpertProducts(int, at::ScalarType, int64_t, int64_t, int64_t)> expert_products(
    "expert_products",
    {{"plain", &each}, {"gathered", &gathered}, {"hopper", &hopper}, {"grouped", &grouped}});

}  // namespace moelab
