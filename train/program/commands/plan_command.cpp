#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/io/terminal.h"
#include "train/predict/estimate.h"
#include "train/predict/larger.h"
#include "train/predict/plan_device.h"
#include "train/predict/shallow_run.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/open_run.h"
#include "train/program/record/progress.h"
#include "train/settings/facts/data_parallel.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/print.h"
#include "train/settings/resolve.h"
#include "train/settings/shell_line.h"

namespace moelab {
namespace {

// Tokens a second of all ranks.
std::string speed_of(const Plan& plan) {
  return fmt::format("{:.0f}", step_tokens(plan.settings) / plan.time.total());
}

// What starts a run of these settings on this machine.
std::string starter(const Settings& settings) {
  const int64_t ranks = settings.parallel.ranks();
  return ranks > 1 ? fmt::format("scripts/ranks.sh {} ", ranks) : "";
}

// What a command that trains lacks still.
std::string_view missing_data(const Settings& settings) {
  return settings.data.path.empty() ? " data.path=FOLDER" : "";
}

Network network_of(const PlanCall& call) {
  if (call.ranks == 1) return {};
  Network network(find_link(call.link));
  if (call.machines == 1) return network;
  network.between = find_link(call.network);
  network.machine_ranks = call.ranks / call.machines;
  return network;
}

void print_question(const Settings& base, const PlanCall& call, const PlanDevice& on) {
  const TrainSettings& train = base.train;
  const std::string device = on.gpu.bytes > 0 ? on.gpu.name : call.device == "cpu" ? "this CPU" : call.device;
  const std::string ranks =
      call.ranks > 1 ? fmt::format(" of {} ranks, each on such a device", call.ranks) : "";
  std::cout << fmt::format("{}, {} parameters, on {} with {}; {} sequences of {} tokens a step{}\n",
                           base.model.preset, human_count(parameter_count(base.model)), device,
                           human_bytes(base.memory.limit.count),
                           data_ranks(base) * train.micro_batch * train.accumulation, train.row(), ranks);
}

// Of several ranks not every layout is searched.
std::string_view winner_words(const PlanCall& call, const PlanResult& result) {
  return result.complete && call.ranks == 1 ? "the fastest that fits" : "the fastest found that fits";
}

// What the speed follows from.
std::string_view basis_of(const PlanDevice& on) {
  return on.probe         ? "predicted for this machine"
         : on.costs.error ? "predicted from another machine"
                          : "a guess from the datasheet";
}

// What a run holds in host memory and in files beside the device; empty: nothing to speak of.
std::string away_text(const DryRun& run) {
  constexpr int64_t kNoted = int64_t{1} << 20;
  return (run.host_peak < kNoted ? "" : ", and " + human_bytes(run.host_peak) + " of host memory") +
         (run.nvme_peak < kNoted ? "" : ", and " + human_bytes(run.nvme_peak) + " in a file");
}

// The peak of tensors, by which plans are compared, and what `moelab estimate` says of the same run.
std::string need_text(const Plan& winner, const Gpu& gpu, int64_t limit) {
  const Estimate needs = estimate(with_few_passes(winner.settings), gpu);
  const std::string share = fmt::format(
      "{:.0f} % of the memory", 100 * static_cast<double>(needs.needed()) / static_cast<double>(limit));
  if (!needs.gpu) return fmt::format("{}, {}{}", human_bytes(winner.peak), share, away_text(needs.run));
  return fmt::format("{}, {}, for {} of tensors{}", human_bytes(needs.needed()), share,
                     human_bytes(winner.peak), away_text(needs.run));
}

// What starts the plan's run.
std::string command_of(const PlanCall& call, const Plan& plan) {
  const std::string added = shell_line(added_settings(call.given, plan.settings));
  return fmt::format("{}{}{}{}{}", starter(plan.settings), call.command, added.empty() ? "" : " ", added,
                     missing_data(plan.settings));
}

void print_answer(const Settings& base, const PlanCall& call, const PlanResult& result, const Larger& larger,
                  const PlanDevice& on) {
  const Plan& winner = result.fits.front();
  std::cout << fmt::format("{} needs {}; {} tokens/s, {}:\n", winner_words(call, result),
                           need_text(winner, on.gpu, base.memory.limit.count), speed_of(winner),
                           basis_of(on));
  std::cout << "  " << command_of(call, winner) << "\n";
  if (const std::string text = larger.text(); !text.empty())
    std::cout << "what would fit too, one change at a time: " << text << "\n";
}

nlohmann::ordered_json row_json(const PlanCall& call, const Plan& plan, const Gpu& gpu) {
  nlohmann::ordered_json techniques = nlohmann::ordered_json::array();
  for (const Plan::Part& part : plan.parts) techniques.push_back(part.name);
  const Estimate needs = estimate(with_few_passes(plan.settings), gpu);
  return {{"tensor_bytes", plan.peak},
          {"needed_bytes", needs.needed()},
          {"host_bytes", needs.run.host_peak},
          {"nvme_bytes", needs.run.nvme_peak},
          {"tokens_per_second", step_tokens(plan.settings) / plan.time.total()},
          {"techniques", techniques},
          {"added", added_settings(call.given, plan.settings)},
          {"command", command_of(call, plan)}};
}

nlohmann::ordered_json probe_json(const std::optional<Probe>& probe) {
  if (!probe) return nullptr;
  return {{"fp32", probe->gemm.fp32},
          {"bf16", probe->gemm.bf16},
          {"fp16", probe->gemm.fp16},
          {"update_nanoseconds", probe->update_nanoseconds},
          {"step_seconds", probe->step_seconds},
          {"seconds", probe->seconds},
          {"agrees", probe->agrees}};
}

void print_json(const Settings& base, const PlanCall& call, const PlanDevice& on, const PlanResult& result) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Plan& plan : result.fits) rows.push_back(row_json(call, plan, on.gpu));
  const nlohmann::ordered_json out = {{"schema", 1},
                                      {"model", base.model.preset},
                                      {"device", call.device},
                                      {"card", on.costs.card},
                                      {"memory_limit_bytes", base.memory.limit.count},
                                      {"times", basis_of(on)},
                                      {"probe", probe_json(on.probe)},
                                      {"complete", result.complete},
                                      {"rows", rows}};
  std::cout << out.dump(1) << "\n";
}

void print_table(const PlanResult& result) {
  std::cout << "\neach row: the fastest that needs at least 5 % less memory than the row above it\n";
  std::cout << fmt::format("{:>3}  {:>10}  {:>9}  {}\n", "", "tensors", "tokens/s",
                           "techniques that are added to your settings");
  int row = 0;
  for (const Plan& plan : result.fits) {
    std::cout << fmt::format("{:>3}  {:>10}  {:>9}  {}\n", ++row, human_bytes(plan.peak), speed_of(plan),
                             names_of(plan));
  }
}

std::string source_of(const CostModel& costs, const std::optional<Probe>& probe) {
  const std::string error =
      costs.error ? fmt::format("wrong by {:.0f} % in the median of {} cases{}, by {:.0f} % at worst",
                                100 * costs.error->median, costs.error->cases, probe ? " there" : "",
                                100 * costs.error->worst)
                  : "never measured: the order is a guess";
  if (!probe) return fmt::format("of {}; {}", costs.about, error);
  const std::string busy =
      probe->agrees ? ""
                    : fmt::format(
                          "; its rounds differ by more than {:.0f} %, so this machine is busy: the "
                          "best of each is taken, and speeds may be wrong",
                          100 * kProbesAgree);
  return fmt::format(
      "of this machine, whose products of this model's sizes run at {:.0f} GFLOP/s in fp32, {:.0f} in bf16 "
      "and {:.0f} in fp16, whose memory gives AdamW {:.1f} GiB/s, and where a step of one block takes "
      "{:.0f} ms (a probe of {:.1f} s{}); scaled from {}; {}",
      1e-9 * probe->gemm.fp32, 1e-9 * probe->gemm.bf16, 1e-9 * probe->gemm.fp16,
      probe->memory_rate() / (1 << 30), 1e3 * probe->step_seconds, probe->seconds, busy, costs.about, error);
}

void print_search(const Settings& base, const PlanDevice& on, const PlanSearch& search,
                  const PlanResult& result) {
  const Network& network = search.network;
  std::cout << fmt::format("\nstep times: {}\n", source_of(on.costs, on.probe));
  std::cout << fmt::format(
      "memory: the tensors of a dry run, up to {:.0f} % of the limit ({}); of {} combinations of techniques "
      "{} are too large by formula, {} were dry-run\n",
      100 * base.memory.critical, human_bytes(search.room), result.admissible, result.pruned,
      result.dry_runs);
  if (!result.complete) std::cout << "faster ones that may fit were not dry-run\n";
  if (base.parallel.ranks() == 1) return;
  std::cout << fmt::format("layouts of ranks: the {} most promising by formula\n", search.layouts.size());
  const Link& inside = network.inside;
  std::cout << fmt::format("between ranks {}: {}\n", inside.name, inside.about);
  if (!network.between) return;
  std::cout << fmt::format("between machines of {} ranks, for each rank {}: {}\n", network.machine_ranks,
                           network.between->name, network.between->about);
}

// Where the time goes; waiting that nothing hides is split by its cause.
void print_time(const Settings& base, const StepTime& time) {
  if (base.parallel.ranks() == 1) return;
  std::cout << fmt::format(
      "\na step of the first takes {:.4g} ms: {:.4g} ms computing, {:.4g} ms copying messages, {:.4g} ms "
      "waiting for other ranks\n",
      1e3 * time.total(), 1e3 * time.computing, 1e3 * time.copying, 1e3 * time.waiting);
  const double others = time.waiting - time.sums - time.rows - time.stages;
  if (time.waiting == others) return;
  std::cout << fmt::format(
      "  of that {:.4g} ms for sums over slices of matrices, {:.4g} ms for rows of experts, {:.4g} ms for "
      "other stages, and {:.4g} ms for what computing does not hide of gradients and weights\n",
      1e3 * time.sums, 1e3 * time.rows, 1e3 * time.stages, 1e3 * others);
}

void print_refused(const Settings& base, const Gpu& gpu, const Plan& plan, int64_t room) {
  const Estimate needs = estimate(with_few_passes(plan.settings), gpu);
  const int64_t held = needs.run.held();
  std::cout << fmt::format("\nthe fastest that does not fit: {} ({} tokens/s)\n  peak {}", names_of(plan),
                           speed_of(plan), human_bytes(held));
  if (held > room) std::cout << fmt::format(", {} too much", human_bytes(held - room));
  std::cout << ", in " << peak_text(needs.run) << "\n";
  const int64_t limit = base.memory.limit.count;
  if (needs.reserved > limit) {
    std::cout << fmt::format("  reserved by CUDA's caching allocator {}, {} over the limit\n",
                             human_bytes(needs.reserved), human_bytes(needs.reserved - limit));
  }
}

int64_t held_bytes(const Settings& settings, const Gpu& gpu) {
  const std::optional<int64_t> about = held_by_depth(settings, gpu);
  return about ? *about : dry_run(with_few_passes(settings), gpu).held();
}

void print_without(const Plan& winner, const CostModel& costs, const Network& network,
                   const std::string& name, const Settings& without, int64_t held) {
  const int64_t saved = held_bytes(without, costs.gpu) - held;
  const double change = 100 * (step_time(without, costs, network).total() / winner.time.total() - 1);
  std::cout << fmt::format(
      "  {:<22}{:>10} {}  {}\n", name, human_bytes(std::abs(saved)), saved >= 0 ? "less" : "more",
      std::abs(change) < 0.5
          ? "as fast"
          : fmt::format("{:.0f} % {}", std::abs(change), change > 0 ? "faster" : "slower"));
}

// Takes away one technique of the plan at a time.
void print_bought(const Plan& winner, const CostModel& costs, const Network& network) {
  if (winner.parts.empty()) return;
  std::cout << "\nwhat each technique of the first row buys\n";
  const int64_t held = held_bytes(winner.settings, costs.gpu);
  for (const Plan::Part& part : winner.parts)
    print_without(winner, costs, network, part.name, part.without, held);
}

// The search, which says on a terminal how far it is.
PlanResult searched(const Settings& base, const CostModel& costs, const PlanSearch& search,
                    const PredictBytes& bytes) {
  const WorkLine working;
  int64_t runs = 0;
  return search_plans(base, costs, search, [&](const Settings& settings) {
    working.show(fmt::format("plan: dry run {}", ++runs));
    return bytes(settings);
  });
}

void write_winner(const Plan& winner, const PlanCall& call) {
  const auto command = [&](const std::string& program) {
    return fmt::format("{}{} train --config {}", starter(winner.settings), program, call.out);
  };
  std::ofstream file(call.out, std::ios::binary);
  file << "# " << command("moelab") << missing_data(winner.settings) << "\n"
       << print_settings(winner.settings);
  file.close();
  if (!file)
    throw UserError("--out " + call.out + ": cannot be written; give a file in a folder that exists");
  if (!call.json)
    std::cout << "\nthe first is in " << call.out << ": " << command(call.program)
              << missing_data(winner.settings) << "\n";
}

void print_text(const Settings& base, const PlanCall& call, const PlanDevice& on, const PlanSearch& search,
                const PlanResult& result) {
  const PredictBytes bytes = bytes_on(on.gpu);
  const Plan& winner = result.fits.front();
  print_question(base, call, on);
  print_answer(base, call, result,
               larger_that_fits(winner.settings, search.room, bytes, quick_and_above(on.gpu, bytes)), on);
  print_table(result);
  print_time(base, winner.time);
  print_bought(winner, on.costs, search.network);
  if (result.refused)
    print_refused(base, on.gpu, *result.refused, search.room);
  else
    std::cout << "\nthe fastest combination fits: more memory would not make this run faster\n";
  print_search(base, on, search, result);
}

// A limit under which the run fits. A higher limit lets the allocator keep more, so this repeats with the
// last reserve as the limit until the reserve fits.
int64_t limit_for(const Plan& plan, const Gpu& gpu, double share) {
  Settings settings = with_few_passes(plan.settings);
  int64_t& limit = settings.memory.limit.count;
  limit = static_cast<int64_t>(static_cast<double>(dry_run(settings, gpu).held()) / share) + 1;
  for (Estimate needs = estimate(settings, gpu); needs.needed() > limit; needs = estimate(settings, gpu))
    limit = needs.needed();
  return limit;
}

int report_nothing_fits(const Settings& base, const Gpu& gpu, const PlanResult& result) {
  if (!result.smallest)
    throw UserError(
        "no combination of techniques works with these settings; moelab train says what contradicts what");
  const Plan& plan = *result.smallest;
  const int64_t needed = limit_for(plan, gpu, base.memory.critical);
  std::cerr << fmt::format(
      "moelab: nothing fits in {}; the smallest that would do is memory.limit={} ({}), with {}: {}\n",
      human_bytes(base.memory.limit.count), needed, human_bytes(needed), names_of(plan),
      peak_text(dry_run(with_few_passes(plan.settings), gpu)));
  return 3;
}

}  // namespace

int plan_command(const Settings& base, const PlanCall& call) {
  constexpr int64_t kRows = 10;
  use_threads(base);
  const PlanDevice on = plan_device(call.device, base);
  if (const std::string slow = slow_products(base, on.probe ? &on.probe->gemm : nullptr); !slow.empty())
    std::cerr << "warning: " << slow << "\n";
  PlanSearch search = search_of(base, call.pinned, kRows);
  search.network = network_of(call);
  if (call.ranks > 1) search.layouts = best_layouts(base, call.pinned, on.costs, search.network, search.room);
  const PlanResult result =
      searched(base, on.costs, search, exact_up_to(search.room, on.gpu, bytes_on(on.gpu)));
  if (result.fits.empty()) return report_nothing_fits(base, on.gpu, result);
  if (call.json)
    print_json(base, call, on, result);
  else
    print_text(base, call, on, search, result);
  if (!call.out.empty()) write_winner(result.fits.front(), call);
  return 0;
}

}  // namespace moelab
