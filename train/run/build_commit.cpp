#include "train/run/build_commit.h"

namespace moelab {

std::string build_commit() {
#ifdef MOELAB_COMMIT
  return MOELAB_COMMIT;
#else
  return "unknown";
#endif
}

}  // namespace moelab
