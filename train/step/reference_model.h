#pragma once
#include <c10/core/Device.h>

#include "moe/documents.h"
#include "moe/transformer.h"
#include "train/placement/gather_runner.h"
#include "train/settings/settings.h"

namespace moelab {

// A frozen model of the same shape that training stays close to. Its weights are those of reference.path, in
// the run's compute type and stored as precision.store says, charged to Kind::reference. The blocks' weights
// lie where reference.placement says and come to the device a block at a time.
class ReferenceModel {
 public:
  // Reads the weights; on meta they have no values. Throws UserError for a folder without a model, or with
  // another model than the settings'.
  ReferenceModel(const Settings& settings, c10::Device device);

  // The reference's part of the comparison in the loss, for tokens (B, S); charged to Kind::reference.
  ReferenceHead read(const at::Tensor& tokens_BS, const Documents& documents = {});

  // Releases what a pass left on the device when it threw.
  void release() { gathered_.release_all(); }
  double waited_seconds() const { return gathered_.waited_seconds(); }

 private:
  void load(const Settings& settings);

  double weight_;
  GatheredWeights gathered_;
  Transformer model_;
  DirectRunner direct_;
  GatherRunner runner_{gathered_, direct_};
};

}  // namespace moelab
