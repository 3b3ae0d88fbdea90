#include "train/presets/profiles.h"

namespace moelab {

Thresholds profile_thresholds(MemoryProfile profile) {
  switch (profile) {
    case MemoryProfile::aggressive:
      return {0.92, 0.94, 0.96, 0.98};
    case MemoryProfile::balanced:
      break;
    case MemoryProfile::conservative:
      return {0.85, 0.88, 0.92, 0.95};
  }
  return {0.90, 0.92, 0.95, 0.97};
}

}  // namespace moelab
