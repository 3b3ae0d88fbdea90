#include "kernels/operator/architectures.h"

#include <sstream>

namespace moelab {

bool runs_on(const std::string& architectures, int capability) {
  std::istringstream list(architectures);
  for (std::string name; list >> name;) {
    size_t digits = 0;
    const int built_for = std::stoi(name, &digits);
    const bool alone = name.substr(digits).starts_with("a");
    const bool machine_code = !name.ends_with("-virtual"), ptx = !name.ends_with("-real");
    if (capability == built_for) return true;
    if (alone || capability < built_for) continue;
    if (ptx || (machine_code && capability / 10 == built_for / 10)) return true;
  }
  return false;
}

}  // namespace moelab
