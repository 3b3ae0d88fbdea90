#include "train/program/command_texts.h"

#include <array>

namespace moelab {
namespace {

constexpr UsedSettings kEstimated =
    "model. attention. precision. activations. optim. placement. parallel. train. eval. reference. "
    "data.workers data.prefetch data.pin memory. sample. run.preset run.device run.scale run.threads "
    "run.deterministic";
constexpr UsedSettings kEvaluated =
    "model. attention. precision. train.micro_batch train.sequence train.init eval.batches eval.micro_batch "
    "data.path data.validation memory.limit memory.recover checkpoint.dir run.name run.dir run.preset "
    "run.device run.scale run.threads run.deterministic";
constexpr UsedSettings kGenerated =
    "attention. precision. train.sequence memory.limit memory.cuda_graphs run.device run.threads "
    "run.deterministic";

constexpr UsedSettings kQualified =
    "model. precision. parallel.tensor parallel.expert train.micro_batch train.sequence "
    "train.tokens_per_device "
    "memory.cuda_graphs run.preset run.device run.scale";

constexpr std::array<CommandText, 12> kTexts = {
    {{Command::train, "train", "Train a model under a memory budget",
      "moelab train --config moe-nano --preset gpu-8gb data.path=shards train.steps=100", kAllSettings,
      "MOELAB_KERNELS=plain in the environment: the simplest kernels on a GPU (see moelab qualify).\n\n"},
     {Command::eval, "eval", "Measure a checkpoint's loss on held-out text",
      "moelab eval --config runs/moe-nano/config.yaml --checkpoint runs/moe-nano/checkpoints/step-100",
      kEvaluated},
     {Command::estimate, "estimate", "Predict the peak memory of a run without doing it",
      "moelab estimate --config mixtral-8x7b --preset gpu-24gb", kEstimated},
     {Command::plan, "plan", "Find the fastest combination of techniques that fits a memory budget",
      "moelab plan --preset gpu-8gb --model moe-nano --out plan.yaml\n"
      "         moelab plan --ranks 8 --link 100Gbit --memory 24GiB --model moe-740m --device rtx4090",
      kEstimated,
      "A plan keeps the model, its attention and its update rule; AdamW's state may take a smaller form.\n"
      "With --ranks it also chooses how they share a step's sequences. Exit code 3: nothing fits.\n\n"},
     {Command::fits, "fits", "Find the largest models, depths and batches that fit each size of card",
      "moelab fits --config moe-nano --json", kEstimated},
     {Command::generate, "generate", "Write text with a checkpoint's model",
      "moelab generate --from runs/moe-nano --prompt 'def main(' --max-tokens 100 --temperature 0.7",
      kGenerated},
     {Command::chat, "chat", "Talk with a checkpoint's model: it answers each line",
      "moelab chat --from runs/moe-nano --max-tokens 100", kGenerated},
     {Command::qualify, "qualify", "Try the kernels on this GPU and keep the fastest that are right",
      "moelab qualify --config moe-nano --preset gpu-8gb", kQualified,
      "An operator with several kernels uses the fastest that agrees with LibTorch's operators. train, "
      "eval,\n"
      "generate and chat do this once for a GPU, driver, build and size of layer; qualify does it anew. The\n"
      "results are in ~/.cache/moelab ($XDG_CACHE_HOME/moelab). MOELAB_KERNELS=plain in the environment: "
      "the\n"
      "simplest kernels, and nothing is tried.\n\n"},
     {Command::techniques, "techniques", "List the memory techniques, what they trade and what is claimed",
      "moelab techniques --json", kEstimated},
     {Command::import_model, "import",
      "Convert a Hugging Face folder (Mixtral, OLMoE, Qwen3-MoE) to a checkpoint",
      "moelab import Qwen3-30B-A3B qwen"},
     {Command::export_model, "export", "Convert a checkpoint to a Hugging Face folder",
      "moelab export runs/moe-nano/checkpoints/step-100 moe-nano-hf"},
     {Command::completion, "completion", "Print the script that completes command lines in a shell",
      "source <(moelab completion bash)"}}};

}  // namespace

std::span<const CommandText> command_texts() { return kTexts; }

}  // namespace moelab
