#pragma once
#include "train/settings/settings.h"

namespace moelab {

// Returns when the program runs on the chosen malloc. For another than the system's, restarts the program
// with the same arguments and Debian's library first in LD_PRELOAD; call it before there are threads or open
// files. Throws UserError, naming the package, when that library is missing or does not load.
void use_host_allocator(HostAllocator choice, char** argv);

}  // namespace moelab
