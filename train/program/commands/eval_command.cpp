#include <ATen/ATen.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "moe/settings/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/loop/held_out.h"
#include "train/predict/advice.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/device_choice.h"
#include "train/program/commands/open_run.h"
#include "train/program/qualify/kernel_choice.h"
#include "train/program/record/progress.h"
#include "train/step/trainer.h"

namespace moelab {

namespace {

int evaluate_checkpoint(const Settings& given, const std::string& checkpoint) {
  const ChosenDevice chosen = choose_device(given.run.device);
  if (!chosen.note.empty()) std::cout << chosen.note << std::endl;
  const Settings settings = on_device(given, chosen.device);
  const c10::Device device = limited_device(settings);
  if (const std::string kernels = take_kernels(settings, device); !kernels.empty())
    std::cout << kernels << std::endl;
  if (settings.eval.batches == 0)
    throw UserError("eval.batches is 0: nothing to evaluate; give a number of batches");
  const Dataset data = open_data(settings);
  const LoadedCheckpoint loaded =
      checkpoint.empty() ? load_latest(settings.checkpoint.dir) : load_checkpoint_in(checkpoint);
  Transformer model(settings.model, settings.attention, compute_options(settings.precision, device));
  restore(loaded.model, model_state(model));
  round_masters(model, settings.precision);

  HeldOut held_out(settings, data, device, [](int64_t from, int64_t to) {
    std::cout << fmt::format("out of memory - reducing evaluation batch ({} to {})\n", from, to);
  });
  DirectRunner direct;
  const double loss = held_out.loss([&](const ValidationBatches& batches, int64_t count) {
    return evaluate(model, direct, batches, count);
  });
  std::cout << fmt::format(
      "{}: held-out loss {:.4f} nats a token, perplexity {:.3f} ({} of {} x {} tokens)\n",
      loaded.path.string(), loss, std::exp(loss), counted(held_out.batches(), "batch", "batches"),
      held_out.rows(), settings.train.sequence);
  return 0;
}

}  // namespace

int eval_command(const Settings& settings, const std::string& checkpoint, const std::string&) {
  try {
    return evaluate_checkpoint(settings, checkpoint);
  } catch (const c10::OutOfMemoryError&) {
    const Refusal refusal = cpu_ledger().refusal().value_or(Refusal{});
    std::cerr << refusal_message(refusal, {}, likely_cause(settings, refusal, {.evaluating = true}))
              << "moelab: the memory budget does not hold the model and one sequence; give a larger "
                 "memory.limit\n";
    return 3;
  }
}

}  // namespace moelab
