#include "kernels/moe/expert_probes.h"

namespace moelab {

std::vector<OperatorProbe> expert_probes(const ExpertSizes&, c10::Device) { return {}; }

}  // namespace moelab
