#pragma once
#include <c10/core/Device.h>

namespace moelab::bench {

// The dropless cases of dispatch on `gpu` by the library's sort (sorted_routes.h). A build without CUDA has
// none.
void add_sorted_dispatch(c10::Device gpu);

}  // namespace moelab::bench
