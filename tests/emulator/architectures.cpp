#include "kernels/operator/architectures.h"

#include <cstdlib>

namespace moelab {

// The emulator runs kernels of no architecture, so it has all; MOELAB_EMULATOR_ARCHITECTURES names others.
// Linked before the library, this stands in front of what a build says.
std::string built_architectures() {
  const char* const named = std::getenv("MOELAB_EMULATOR_ARCHITECTURES");
  return named == nullptr ? "80 86 89 90a 100 120" : named;
}

}  // namespace moelab
