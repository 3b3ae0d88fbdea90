#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/memory/report.h"
#include "train/predict/estimate.h"
#include "train/predict/known_formulas.h"
#include "train/predict/probe.h"
#include "train/predict/step_cost.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/device_choice.h"
#include "train/program/commands/open_run.h"
#include "train/program/record/progress.h"
#include "train/settings/convert.h"
#include "train/settings/facts/precision.h"
#include "train/settings/facts/update_rule.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/print.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

// What the dry run counted, to stand beside a formula. Activations are counted at the peak of forward, when
// those of all blocks exist: by the peak of the step, backward may have freed some.
int64_t dry_bytes(const DryRun& run, KnownFormula::Of of) {
  const auto& state = run.state;
  if (of == KnownFormula::Of::peak) return run.peak;
  if (of == KnownFormula::Of::state) return state.parameters + state.gradients + state.optimizer;
  const std::string kind = of == KnownFormula::Of::attention ? "activations.attention" : "activations";
  for (const auto& [name, bytes] : kind_report(run.by_kind_in_forward))
    if (name == kind) return bytes;
  return 0;
}

const char* name_of(KnownFormula::Of of) {
  switch (of) {
    case KnownFormula::Of::peak:
      return "peak";
    case KnownFormula::Of::state:
      return "state";
    case KnownFormula::Of::activations:
      return "activations";
    case KnownFormula::Of::attention:
      break;
  }
  return "attention";
}

nlohmann::ordered_json formulas_json(const Settings& settings, const DryRun& run) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const KnownFormula& known : known_formulas(settings)) {
    rows.push_back({{"name", known.name},
                    {"formula", known.formula},
                    {"bytes", static_cast<int64_t>(known.bytes)},
                    {"dry_run_bytes", dry_bytes(run, known.of)},
                    {"not_kept", known.not_kept},
                    {"leaves_out", known.leaves_out}});
  }
  return rows;
}

// A row of two columns, and what is to be said of it.
void print_row(std::string_view name, const std::string& value, const std::string& about = {}) {
  std::cout << fmt::format("  {:<28}{:>10}{}{}\n", name, value, about.empty() ? "" : "  ", about);
}
void print_row(std::string_view name, int64_t bytes, const std::string& about = {}) {
  print_row(name, human_bytes(bytes), about);
}

void print_formulas(const Settings& settings, const DryRun& run) {
  if (known_formulas(settings).empty()) return;
  std::cout << "\nclosed formulas beside the dry run, activations at the peak of its forward\n";
  for (const KnownFormula& known : known_formulas(settings)) {
    const int64_t dry = dry_bytes(run, known.of);
    print_row(known.name, static_cast<int64_t>(known.bytes),
              fmt::format("{}: {}; the dry run has {}", name_of(known.of), known.formula, human_bytes(dry)));
    if (!known.not_kept.empty()) print_row("", "", "counts what this run does not keep: " + known.not_kept);
    if (!known.leaves_out.empty()) print_row("", "", "leaves out " + known.leaves_out);
  }
}

// Null where ranks share matrices or layers: their work differs.
nlohmann::ordered_json work_json(const Settings& settings) {
  nlohmann::ordered_json work;
  if (settings.parallel.pipeline > 1 || settings.parallel.tensor > 1) return work;
  const StepCost cost = step_cost(settings);
  for (const std::string_view term : cost_terms()) work[std::string(term)] = cost.of(term);
  return work;
}

// What each of `ranks` data-parallel ranks holds under ZeRO stage 0 to 3, by a dry run of each.
std::vector<DryRun> zero_stages(Settings settings, const Gpu& gpu, int64_t ranks) {
  settings.parallel.data = ranks;
  std::vector<DryRun> runs;
  for (settings.parallel.zero = 0; settings.parallel.zero < 4; ++settings.parallel.zero) {
    if (settings.parallel.zero > 1) settings.parallel.reduce = Reduction::micro_batch;
    validate(settings);
    runs.push_back(dry_run(settings, gpu));
  }
  return runs;
}

nlohmann::ordered_json ranks_json(const Settings& settings, const Gpu& gpu, int64_t ranks) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const DryRun& run : zero_stages(settings, gpu, ranks)) {
    rows.push_back({{"zero", rows.size()},
                    {"parameters", run.state.parameters},
                    {"gradients", run.state.gradients},
                    {"optimizer", run.state.optimizer},
                    {"peak_bytes", run.peak},
                    {"sent_bytes", run.sent_bytes}});
  }
  return rows;
}

void print_ranks(const Settings& settings, const Gpu& gpu, int64_t ranks) {
  std::cout << fmt::format("\none of {} data-parallel ranks, by a dry run of each ZeRO stage\n", ranks);
  std::cout << fmt::format("  {:<16}{:>20}{:>12}{:>12}{:>12}{:>16}\n", "", "weights and masters", "gradients",
                           "optimizer", "peak", "sent in a step");
  int64_t stage = 0;
  for (const DryRun& run : zero_stages(settings, gpu, ranks)) {
    const int64_t limit = settings.memory.limit.count;
    const char* verdict = limit == 0 ? "" : run.held() <= limit ? "  fits" : "  does not fit";
    std::cout << fmt::format("  {:<16}{:>20}{:>12}{:>12}{:>12}{:>16}{}\n",
                             fmt::format("parallel.zero={}", stage++), human_bytes(run.state.parameters),
                             human_bytes(run.state.gradients), human_bytes(run.state.optimizer),
                             human_bytes(run.peak), human_bytes(run.sent_bytes), verdict);
  }
}

// The GPU that the estimate is for, with what is not the run's own; null for the CPU.
nlohmann::ordered_json gpu_json(const Estimate& estimate) {
  if (!estimate.gpu) return nullptr;
  return {{"name", estimate.gpu->name},
          {"compute_capability", capability_text(estimate.gpu->capability)},
          {"bytes", estimate.gpu->bytes},
          {"workspace_bytes", estimate.run.workspaces},
          {"context_bytes", kContextBytes}};
}

void print_json(const Settings& settings, const Estimate& estimate, const Gpu& gpu, int64_t ranks) {
  const DryRun& run = estimate.run;
  nlohmann::ordered_json phases, kinds;
  for (size_t i = 0; i < kPhases; ++i)
    phases[std::string(phase_name(static_cast<Phase>(i)))] = run.phase_peak[i];
  for (const auto& [name, bytes] : kind_report(run.by_kind_at_peak)) kinds[name] = bytes;
  nlohmann::ordered_json out = {
      {"schema", 1},
      {"model", {{"preset", settings.model.preset}, {"parameters", parameter_count(settings.model)}}},
      {"gpu", gpu_json(estimate)},
      {"peak_bytes", run.peak},
      {"peak_bytes_by_phase", phases},
      {"peak_bytes_by_kind", kinds},
      {"reserved_bytes", estimate.reserved},
      {"on_card_bytes", estimate.on_card()},
      {"host_bytes", run.host_peak},
      {"nvme_bytes", run.nvme_peak},
      {"sent_bytes", run.sent_bytes},
      {"sent_rows_bytes", run.sent_rows_bytes},
      {"sent_stage_bytes", run.sent_stage_bytes},
      {"rank", run.rank},
      {"sent_sums_bytes", run.sent_sums_bytes},
      {"owned_elements", run.owned_elements},
      {"state_bytes",
       {{"parameters", run.state.parameters},
        {"gradients", run.state.gradients},
        {"optimizer", run.state.optimizer}}},
      {"memory_limit_bytes", settings.memory.limit.count},
      {"fits", estimate.fits(settings.memory.limit.count)},
      {"formulas", formulas_json(settings, run)},
      {"step_work", work_json(settings)}};
  if (ranks > 1) out["ranks"] = {{"count", ranks}, {"by_stage", ranks_json(settings, gpu, ranks)}};
  std::cout << out.dump(2) << "\n";
}

// What a rank of N sends in a step, in elements of P parameters.
std::string sent_formula(const Settings& settings) {
  const std::string each = settings.parallel.reduce == Reduction::step ? " a step" : " a micro-batch",
                    experts = settings.parallel.expert > 1
                                  ? "; of experts N / M in place of N, and of their weights P / M"
                                  : "";
  switch (settings.parallel.zero) {
    case 0:
      return "gradients: P (N - 1)" + each + experts;
    case 3:
      return fmt::format("(N - 1) / N of: gradients P, blocks {}P, embedding and head P, all a micro-batch",
                         settings.placement.reshard_after_forward ? "2 " : "") +
             experts;
    default:
      return "(N - 1) / N of: gradients P" + each + ", weights P" + experts;
  }
}

void print_state(const Settings& settings, const DryRun& run) {
  const bool wide = settings.precision.compute == ComputePrecision::fp32;
  const std::string stored = settings.precision.compute == ComputePrecision::fp16 ? "fp16" : "bf16";
  const std::string coded = weight_code(settings.precision) ? "; the blocks' " + coded_bytes_text() + ", " +
                                                                  value_text(settings.precision.store)
                                                            : "";
  const int64_t ranks = std::max<int64_t>(1, settings.parallel.data), zero = settings.parallel.zero;
  const auto part = [&](const std::string& formula, int64_t from_stage) {
    return ranks > 1 && zero >= from_stage ? formula + " / N" : formula;
  };
  const std::string masters =
      !wide && keeps_masters(settings) ? " + " + part("4 P", 1) + " (fp32 masters)" : "";
  const bool whole = settings.parallel.reduce == Reduction::step && settings.train.accumulation > 1;
  const bool one_micro_batch = settings.train.accumulation * ranks == 1;
  std::cout << "\nstate, by formula"
            << (settings.parallel.pipeline > 1 ? "; P counts this stage's parameters" : "")
            << (settings.parallel.tensor > 1 ? "; P counts this rank's slices of matrices" : "")
            << (settings.parallel.expert > 1 ? "; P that is not divided counts this rank's experts alone\n"
                                             : "\n");
  print_row("weights", run.state.parameters,
            wide ? part("4 P", 3) : part("2 P", 3) + " (" + stored + coded + ")" + masters);
  print_row("gradients", run.state.gradients,
            settings.optim.in_backward ? "the largest, consumed in backward"
            : !wide && one_micro_batch ? "2 P"
            : whole                    ? "4 P"
                                       : part("4 P", 1));
  print_row("optimizer", run.state.optimizer, part(update_rule_facts(settings.optim).formula(), 1));
}

void print_stages(const Settings& settings, const DryRun& run) {
  const ParallelSettings& p = settings.parallel;
  const int64_t waits = p.pipeline - 1, passes = p.chunks * settings.train.accumulation;
  std::cout << fmt::format("\nrank {}, of {} stages of a pipeline\n", run.rank, p.pipeline);
  print_row("handed to other stages", run.sent_stage_bytes,
            fmt::format("T D elements{} forward and as much backward, a micro-batch and boundary{}",
                        settings.model.dense() ? "" : " and two losses",
                        settings.model.tie_embeddings ? "; the ends' gradients of the embedding" : ""));
  print_row("waiting for others",
            fmt::format("{:.1f} %", 100.0 * static_cast<double>(waits) / static_cast<double>(passes + waits)),
            "of a step, where stages are equally fast: (P - 1) / (v M + P - 1) with P stages of v chunks, M "
            "micro-batches");
}

void print_gpu(const Estimate& estimate) {
  const DryRun& run = estimate.run;
  std::cout << fmt::format("\non {}, by constants and a model of its allocator; nothing of it measured\n",
                           text_of(*estimate.gpu));
  print_row("cuBLAS workspaces", run.workspaces, "beside the tensors");
  print_row(
      "reserved", estimate.reserved,
      fmt::format("by CUDA's caching allocator, {:.1f} % of it idle at the peak",
                  100 - 100 * static_cast<double>(run.held()) / static_cast<double>(estimate.reserved)));
  print_row("CUDA context", kContextBytes, "outside of the allocator");
  print_row("taken of the card", estimate.on_card());
}

// Whether the run fits memory.limit, and on a GPU the card, in the first line.
void print_verdict(const Settings& settings, const Estimate& estimate) {
  const int64_t limit = settings.memory.limit.count, needed = estimate.needed();
  if (limit == 0) return;
  const std::string share =
      fmt::format("{}{}, {:.0f} % of the limit of {}", human_bytes(needed),
                  estimate.gpu ? " reserved by CUDA's caching allocator" : "",
                  100 * static_cast<double>(needed) / static_cast<double>(limit), human_bytes(limit));
  if (estimate.fits(limit))
    std::cout << "fits: needs " << share << "; scratch inside library products comes on top\n";
  else
    std::cout << "does not fit: needs " << share
              << (needed <= limit ? ", and CUDA's context the rest of the card" : "")
              << "; moelab plan finds techniques that do\n";
}

// What a rank sends in a step, by what it is.
void print_sent(const Settings& settings, const DryRun& run) {
  const ParallelSettings& p = settings.parallel;
  if (p.data > 1) {
    std::cout << fmt::format("\none of {} data-parallel ranks\n", p.data);
    print_row("sent in a step",
              run.sent_bytes - run.sent_rows_bytes - run.sent_stage_bytes - run.sent_sums_bytes,
              sent_formula(settings));
  }
  if (p.expert > 1) {
    print_row(
        "rows of experts", run.sent_rows_bytes,
        fmt::format("(M - 1) / M of 4 R D and 2 R weights, a layer and micro-batch: R rows of width D, M={}",
                    p.expert));
  }
  if (!run.owned_elements.empty()) {
    const auto [least, most] = std::minmax_element(run.owned_elements.begin(), run.owned_elements.end());
    print_row("parameters stepped", human_count(*least),
              fmt::format("at least, and {} at most: whole rows, blocks or matrices", human_count(*most)));
  }
  if (p.tensor == 1) return;
  std::cout << fmt::format("\none of {} tensor-parallel ranks, which have a slice of each matrix\n",
                           p.tensor);
  print_row(
      "sums sent in a step", run.sent_sums_bytes,
      fmt::format("2 (N - 1) / N of: 4 T D a layer, 2 T D for embedding and head, a micro-batch: T tokens of "
                  "width D, N={}; of recomputed blocks' forward once more",
                  p.tensor));
}

void print_text(const Settings& settings, const Estimate& estimate, const Gpu& gpu, int64_t ranks) {
  const DryRun& run = estimate.run;
  const ModelSettings& m = settings.model;
  const std::string compute = value_text(settings.precision.compute);
  const bool wide = settings.precision.compute == ComputePrecision::fp32;
  const bool masters = !wide && keeps_masters(settings);
  print_verdict(settings, estimate);
  std::cout << fmt::format("{}, {} parameters; micro-batch {} x {} tokens, accumulation {}, {}\n", m.preset,
                           human_count(parameter_count(m)), settings.train.micro_batch, settings.train.row(),
                           settings.train.accumulation, compute + (masters ? " with fp32 masters" : ""));
  const std::string of_rank =
      settings.parallel.pipeline > 1 ? fmt::format(" of rank {}, which holds the most,", run.rank) : "";
  std::cout << fmt::format(
      "predicted peak of the tensors {}{} on {}, from a dry run of the training step\n\nby phase\n",
      human_bytes(run.peak), of_rank, estimate.gpu ? text_of(*estimate.gpu) : "the CPU");
  for (size_t i = 0; i < kPhases; ++i) print_row(phase_name(static_cast<Phase>(i)), run.phase_peak[i]);
  std::cout << "\nby kind, at the peak\n";
  for (const auto& [name, bytes] : kind_report(run.by_kind_at_peak)) {
    if (bytes > 0) print_row(name, bytes);
  }
  std::cout << "\noutside of the device\n";
  print_row("host", run.host_peak);
  print_row("nvme", run.nvme_peak);
  print_sent(settings, run);
  if (settings.parallel.pipeline > 1) print_stages(settings, run);
  if (estimate.gpu) print_gpu(estimate);
  print_state(settings, run);
  print_formulas(settings, run);
  if (ranks > 1) print_ranks(settings, gpu, ranks);
}

}  // namespace

int estimate_command(const Settings& given, bool json, int64_t ranks) {
  const auto [settings, gpu] = predicted_on(given);
  use_threads(settings);
  if (const std::string slow = slow_products(settings); !slow.empty())
    std::cerr << "warning: " << slow << "\n";
  const Estimate predicted = estimate(settings, gpu);
  json ? print_json(settings, predicted, gpu, ranks) : print_text(settings, predicted, gpu, ranks);
  return predicted.fits(settings.memory.limit.count) ? 0 : 3;
}

}  // namespace moelab
