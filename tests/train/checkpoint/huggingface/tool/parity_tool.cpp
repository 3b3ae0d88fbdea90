// Functions that the Python tests of Hugging Face folders need and the program does not offer:
//   parity_tool run CHECKPOINT BATCH OUT    BATCH: a safetensors file of tokens and targets (B, S) int64.
//                                           Writes to OUT the logits (B, S, V) and the gradient of the mean
//                                           cross entropy by each parameter, under our names
//   parity_tool export CHECKPOINT OUT N     exports in shards of at most N bytes
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>
#include <iostream>

#include "kernels/memory/ledger.h"
#include "moe/transformer.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/huggingface/convert.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

Transformer& load_model(const std::string& folder) {
  const LoadedCheckpoint checkpoint = load_checkpoint(folder);
  const Settings settings = load_settings({.config = folder + "/config.yaml"});
  static Transformer model(settings.model, settings.attention, {});
  std::vector<TensorEntry> entries;
  for (const Parameter& parameter : model.parameters()) {
    entries.push_back({parameter.name, parameter.value.detach()});
  }
  restore(checkpoint.model, entries);
  return model;
}

void run(const std::string& folder, const std::string& batch_path, const std::string& out_path) {
  Transformer& model = load_model(folder);
  const SafetensorsFile batch(batch_path);
  const at::Tensor tokens = batch.tensor("tokens"), targets = batch.tensor("targets");
  DirectRunner direct;
  std::vector<TensorEntry> out;
  {
    at::NoGradGuard no_grad;
    out.push_back({"logits", model.logits(tokens, direct)});
  }
  const at::Tensor loss = model.forward(tokens, targets, false, direct).cross_entropy;
  torch::autograd::backward({loss}, {});
  for (const Parameter& parameter : model.parameters()) {
    out.push_back({parameter.name, parameter.value.grad()});
  }
  write_safetensors(out_path, out);
}

}  // namespace
}  // namespace moelab

int main(int argc, char** argv) {
  moelab::install_allocators();
  if (argc == 5 && std::strcmp(argv[1], "run") == 0) {
    moelab::run(argv[2], argv[3], argv[4]);
  } else if (argc == 5 && std::strcmp(argv[1], "export") == 0) {
    moelab::export_huggingface(argv[2], argv[3], std::atoll(argv[4]));
  } else {
    std::cerr << "parity_tool run CHECKPOINT BATCH OUT | export CHECKPOINT OUT N\n";
    return 2;
  }
}
