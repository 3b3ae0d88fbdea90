#include "train/step/reference_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kernels/memory/ledger.h"
#include "train/checkpoint/huggingface/convert.h"
#include "train/step/compute_type.h"

namespace moelab {
namespace {

// Placement settings that make GatheredWeights serve a model that is never updated.
Settings frozen(Settings settings) {
  settings.placement.parameters = settings.reference.placement;
  settings.placement.optimizer = Home::host;
  return settings;
}

TransformerOptions frozen_options(const Settings& settings, c10::Device device, GatheredWeights& gathered) {
  TransformerOptions options;
  options.device = device;
  options.compute = compute_type(settings.precision);
  options.fp8 = settings.precision.compute == ComputePrecision::fp8;
  options.masters = false;
  options.longest_document = settings.train.sequence;
  options.made = [&gathered](Parameter& parameter) {
    retag(parameter.value, Kind::reference);
    gathered.adopt(parameter);
  };
  return options;
}

}  // namespace

ReferenceModel::ReferenceModel(const Settings& settings, c10::Device device)
    : weight_(settings.reference.kl),
      gathered_(frozen(settings), device),
      model_(settings.model, settings.attention, frozen_options(settings, device, gathered_)) {
  for (const Transformer::Buffer& buffer : model_.buffers()) retag(buffer.tensor, Kind::reference);
  if (!device.is_meta()) load(settings);
}

// Loads through fp32 copies on the host, so that the weights are rounded as training rounds its own.
void ReferenceModel::load(const Settings& settings) {
  const at::NoGradGuard no_grad;
  std::vector<TensorEntry> entries;
  {
    const HomeScope outside(Home::host);
    for (const Parameter& parameter : model_.parameters()) {
      entries.push_back({parameter.name, at::empty(parameter.value.sizes(), at::TensorOptions(at::kFloat))});
    }
  }
  for (const Transformer::Buffer& buffer : model_.buffers()) entries.push_back({buffer.name, buffer.tensor});
  load_initial_weights(settings.reference.path, settings.model, entries, "reference.path");
  for (size_t i = 0; i < model_.parameters().size(); ++i) {
    gathered_.change(i, [&] { model_.parameters()[i].value.detach().copy_(entries[i].tensor); });
  }
}

ReferenceHead ReferenceModel::read(const at::Tensor& tokens_BS, const Documents& documents) {
  ReferenceHead head = model_.reference(tokens_BS, runner_, weight_, documents);
  retag(head.x_TD, Kind::reference);
  return head;
}

}  // namespace moelab
