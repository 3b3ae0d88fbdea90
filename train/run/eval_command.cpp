#include <ATen/ATen.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "moe/settings/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/commands.h"
#include "train/run/open_run.h"
#include "train/run/trainer.h"

namespace moelab {

int eval_command(const Settings& settings, const std::string& checkpoint, const std::string&) {
  const c10::Device device = open_device(settings);
  if (settings.eval.batches == 0)
    throw UserError("eval.batches is 0: nothing to evaluate; give a number of batches");
  const Dataset data = open_data(settings);
  const LoadedCheckpoint loaded =
      checkpoint.empty() ? load_latest(settings.checkpoint.dir) : load_checkpoint(checkpoint);
  Transformer model(settings.model, settings.attention, compute_options(settings.precision, device));
  restore(loaded.model, model_state(model));
  round_masters(model);

  const ValidationStream validation(data, settings.train.sequence, settings.eval.micro_batch);
  const int64_t batches = std::min(settings.eval.batches, validation.batches());
  const double loss = evaluate(
      model, [&](int64_t b) { return validation.read(b); }, batches);
  std::cout << fmt::format(
      "{}: held-out loss {:.4f} nats a token, perplexity {:.3f} ({} batches of {} x {} tokens)\n",
      loaded.path.string(), loss, std::exp(loss), batches, settings.eval.micro_batch,
      settings.train.sequence);
  return 0;
}

}  // namespace moelab
