#pragma once

namespace moelab {

// The factor of the loss: `fixed`, or a dynamic scale. 0: dynamic with fp16, none with other types.
struct LossFactor {
  double fixed = 0;
  bool dynamic = false;

  bool automatic() const { return fixed == 0 && !dynamic; }
  friend bool operator==(const LossFactor&, const LossFactor&) = default;
};

}  // namespace moelab
