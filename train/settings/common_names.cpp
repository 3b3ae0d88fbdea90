#include "train/settings/common_names.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace moelab {
namespace {

using Name = std::pair<std::string_view, std::string_view>;

// Written as plain() makes them. From the options of PyTorch's, Hugging Face's and nanoGPT's trainers.
constexpr std::array kNames = std::to_array<Name>({
    {"batchsize", "train.micro_batch"},
    {"perdevicetrainbatchsize", "train.micro_batch"},
    {"microbatchsize", "train.micro_batch"},
    {"gradientaccumulationsteps", "train.accumulation"},
    {"gradaccum", "train.accumulation"},
    {"epochs", "train.steps"},
    {"numtrainepochs", "train.steps"},
    {"maxsteps", "train.steps"},
    {"maxiters", "train.steps"},
    {"iterations", "train.steps"},
    {"seqlen", "train.sequence"},
    {"maxseqlen", "train.sequence"},
    {"sequencelength", "train.sequence"},
    {"contextlength", "train.sequence"},
    {"learningrate", "optim.lr"},
    {"warmupsteps", "optim.warmup"},
    {"maxgradnorm", "optim.clip"},
    {"gradclip", "optim.clip"},
    {"optimizer", "optim.name"},
    {"dtype", "precision.compute"},
    {"gradientcheckpointing", "activations.checkpoint"},
    {"dataset", "data.path"},
    {"outputdir", "run.dir"},
    {"saveevery", "checkpoint.every"},
    {"savesteps", "checkpoint.every"},
    {"logevery", "run.log_every"},
    {"numlayers", "model.layers"},
    {"nlayer", "model.layers"},
    {"hiddensize", "model.d_model"},
    {"nembd", "model.d_model"},
    {"numheads", "model.heads"},
    {"nhead", "model.heads"},
    {"numexperts", "model.experts"},
    {"topk", "model.experts_per_token"},
    {"vocabsize", "model.vocab"},
    // cards by their memory
    {"8gb", "gpu-8gb"},
    {"12gb", "gpu-12gb"},
    {"16gb", "gpu-16gb"},
    {"24gb", "gpu-24gb"},
    {"rtx2080", "gpu-8gb"},
    {"rtx3060ti", "gpu-8gb"},
    {"rtx3070", "gpu-8gb"},
    {"rtx3070ti", "gpu-8gb"},
    {"rtx4060", "gpu-8gb"},
    {"rtx3060", "gpu-12gb"},
    {"rtx3080ti", "gpu-12gb"},
    {"rtx4070", "gpu-12gb"},
    {"rtx4070ti", "gpu-12gb"},
    {"rtx4080", "gpu-16gb"},
    {"t4", "gpu-16gb"},
    {"v100", "gpu-16gb"},
    {"a10", "gpu-24gb"},
    {"l4", "gpu-24gb"},
    {"rtx3090", "gpu-rtx3090"},
    {"rtx3090ti", "gpu-rtx3090"},
    {"rtx4090", "gpu-rtx4090"},
    {"a100", "gpu-a100-40gb"},
    {"h100", "gpu-h100-80gb"},
});

// Lower case, without what separates words, and without dashes in front.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::span<const Name> common_names() { return kNames; }

std::string by_common_name(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string whole = plain(name), bare = plain(name.substr(name.find('.') + 1));
  for (const auto& [common, ours] : kNames) {
    const bool known = std::find(candidates.begin(), candidates.end(), ours) != candidates.end();
    if (known && (whole == common || bare == common)) return std::string(ours);
  }
  return "";
}

}  // namespace moelab
