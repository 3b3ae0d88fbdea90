#pragma once
#include <cstdint>

#include "kernels/device/host_device.h"

namespace moelab {

// The row of the `place`-th route in an expert's queue for sequence b; rows are ordered (E, B, C).
MOELAB_HOST_DEVICE inline int32_t capacity_row(int64_t expert, int64_t b, int64_t place, int64_t sequences,
                                               int64_t capacity) {
  return static_cast<int32_t>((expert * sequences + b) * capacity + place);
}

}  // namespace moelab
