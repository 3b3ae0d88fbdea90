#include "kernels/operator/architectures.h"

namespace moelab {

// Alone in its file: a program on the emulated GPU (tests/emulator) brings another definition.
std::string built_architectures() { return MOELAB_BUILT_ARCHITECTURES; }

}  // namespace moelab
