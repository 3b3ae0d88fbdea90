#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/memory/report.h"
#include "train/config/convert.h"
#include "train/config/print.h"
#include "train/optim/optimizer.h"
#include "train/placement/gather_weights.h"
#include "train/presets/parameter_count.h"
#include "train/run/commands.h"
#include "train/run/dry_run.h"
#include "train/run/open_run.h"
#include "train/run/progress.h"

namespace moelab {
namespace {

void print_json(const Settings& settings, const DryRun& run) {
  nlohmann::ordered_json phases, kinds;
  for (size_t i = 0; i < kPhases; ++i)
    phases[std::string(phase_name(static_cast<Phase>(i)))] = run.phase_peak[i];
  for (const auto& [name, bytes] : kind_report(run.by_kind_at_peak)) kinds[name] = bytes;
  const nlohmann::ordered_json out = {
      {"schema", 1},
      {"model", {{"preset", settings.model.preset}, {"parameters", parameter_count(settings.model)}}},
      {"peak_bytes", run.peak},
      {"peak_bytes_by_phase", phases},
      {"peak_bytes_by_kind", kinds},
      {"host_bytes", run.host_peak},
      {"nvme_bytes", run.nvme_peak},
      {"state_bytes",
       {{"parameters", run.state.parameters},
        {"gradients", run.state.gradients},
        {"optimizer", run.state.optimizer}}},
      {"memory_limit_bytes", settings.memory.limit.count}};
  std::cout << out.dump(2) << "\n";
}

void print_text(const Settings& settings, const DryRun& run) {
  const ModelSettings& m = settings.model;
  const std::string compute = value_text(settings.precision.compute);
  const bool wide = settings.precision.compute == ComputePrecision::fp32;
  const std::string stored = settings.precision.compute == ComputePrecision::fp16 ? "fp16" : "bf16";
  const std::string coded = weight_code(settings.precision)
                                ? "; the blocks' 1 + 4/256, " + value_text(settings.precision.store)
                                : "";
  const bool masters = !wide && keeps_masters(settings);
  std::cout << fmt::format("{}, {} parameters; micro-batch {} x {} tokens, accumulation {}, {}\n", m.preset,
                           human_count(parameter_count(m)), settings.train.micro_batch,
                           settings.train.sequence, settings.train.accumulation,
                           compute + (masters ? " with fp32 masters" : ""));
  std::cout << fmt::format("predicted peak {}, from a dry run of the training step\n\nby phase\n",
                           human_bytes(run.peak));
  for (size_t i = 0; i < kPhases; ++i) {
    std::cout << fmt::format("  {:<24}{:>12}\n", phase_name(static_cast<Phase>(i)),
                             human_bytes(run.phase_peak[i]));
  }
  std::cout << "\nby kind, at the peak\n";
  for (const auto& [name, bytes] : kind_report(run.by_kind_at_peak)) {
    if (bytes > 0) std::cout << fmt::format("  {:<24}{:>12}\n", name, human_bytes(bytes));
  }
  std::cout << "\nstate, by formula\n";
  const auto state = [&](const char* name, int64_t bytes, const char* formula) {
    std::cout << fmt::format("  {:<24}{:>12}  {}\n", name, human_bytes(bytes), formula);
  };
  state("weights", run.state.parameters,
        wide ? "4 P" : ("2 P (" + stored + coded + ")" + (masters ? " + 4 P (fp32 masters)" : "")).c_str());
  state("gradients", run.state.gradients,
        settings.optim.in_backward                  ? "the largest, consumed in backward"
        : !wide && settings.train.accumulation == 1 ? "2 P"
                                                    : "4 P");
  state("optimizer", run.state.optimizer, state_formula(settings.optim).c_str());
  if (settings.memory.limit.count > 0) {
    std::cout << fmt::format("\n{} the limit of {}; scratch inside library products comes on top\n",
                             run.peak <= settings.memory.limit.count ? "fits" : "does NOT fit",
                             human_bytes(settings.memory.limit.count));
  }
}

}  // namespace

int estimate_command(const Settings& settings, bool json) {
  use_threads(settings);
  const DryRun run = dry_run(settings);
  json ? print_json(settings, run) : print_text(settings, run);
  const bool fits = settings.memory.limit.count == 0 || run.peak <= settings.memory.limit.count;
  return fits ? 0 : 3;
}

}  // namespace moelab
