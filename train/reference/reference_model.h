#pragma once
#include <c10/core/Device.h>

#include "moe/transformer.h"
#include "train/config/settings.h"
#include "train/placement/gather_runner.h"

namespace moelab {

// A frozen model of the same shape that training stays close to: the weights of reference.path, in the type
// that the run computes in and as precision.store codes them, booked to Kind::reference. Its blocks' weights
// are where reference.placement says, and come to the device a block at a time.
class ReferenceModel {
 public:
  // Reads the weights; on meta they have no values. Throws UserError for a folder that holds no model, or
  // another than the settings'.
  ReferenceModel(const Settings& settings, c10::Device device);

  // Its side of the comparison in the loss, for tokens (B, S); booked to Kind::reference. `documents`: as
  // ForwardContext's.
  ReferenceHead read(const at::Tensor& tokens_BS, const at::Tensor& documents = {});

  // Lets go of what a pass that threw has left on the device.
  void release() { gathered_.release_all(); }

 private:
  void load(const Settings& settings);

  double weight_;
  GatheredWeights gathered_;
  Transformer model_;
  DirectRunner direct_;
  GatherRunner runner_{gathered_, direct_};
};

}  // namespace moelab
