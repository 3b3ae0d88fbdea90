#pragma once
#include "train/config/settings.h"

namespace moelab {

// Returns once the program runs on the chosen malloc. For another than the system's it starts the program
// anew, with the same arguments and Debian's library in front of LD_PRELOAD; call it before there are threads
// or files. Throws UserError, naming the package, where that library is missing or does not load.
void use_host_allocator(HostAllocator choice, char** argv);

}  // namespace moelab
