#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "kernels/memory/ledger.h"
#include "moe/name_hash.h"
#include "moe/settings/error.h"
#include "train/io/terminal.h"
#include "train/parallel/ranks.h"
#include "train/predict/probe.h"
#include "train/program/commands/budget_check.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/device_choice.h"
#include "train/program/commands/open_run.h"
#include "train/program/commands/stop_signal.h"
#include "train/program/commands/train_run.h"
#include "train/program/record/run_folder.h"
#include "train/settings/print.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

// What all ranks must have alike: their settings, but for the memory that each may use.
std::vector<int64_t> digest_of(Settings settings) {
  settings.memory.limit = {};
  return {static_cast<int64_t>(name_hash(print_settings(settings)))};
}

// Rank 0 speaks, saves checkpoints and leaves its files in run.dir; each other rank leaves its own in
// run.dir/ranks/RANK.
Settings settings_of_rank(Settings settings, const Ranks& ranks) {
  const World& world = ranks.world();
  if (ranks.alone()) return settings;
  settings.parallel.data = ranks.layout().data;
  validate(settings);
  if (settings.run.threads == 0)
    settings.run.threads = std::max<int64_t>(1, std::thread::hardware_concurrency() / world.local_size);
  if (world.rank > 0) {
    settings.run.dir += "/ranks/" + std::to_string(world.rank);
    std::cout.setstate(std::ios::failbit);
  }
  return settings;
}

// A mistake that the ranks of one machine alone have met is told by the first of them.
ChosenDevice device_of_rank(const Settings& settings, const World& world) {
  try {
    return choose_device(settings.run.device, world);
  } catch (const UserError& error) {
    if (world.rank == 0 || world.local_rank > 0) throw;
    throw RankError(world.rank, error);
  }
}

// What rank 0 finds in run.dir holds for all ranks.
void refuse_used_folder(const Settings& settings, const TrainOptions& options, Communicator& control) {
  const auto found = [&] {
    std::string reason = no_folder(settings);
    if (reason.empty()) reason = nothing_to_resume(settings, options.resume);
    return reason.empty() && !options.overwrite ? run_in_the_way(settings, options.resume) : reason;
  };
  const std::string reason = of_first_rank(control, control.rank() == 0 ? found() : "");
  if (!reason.empty()) throw SharedMistake(reason);
}

// The products that this measures are not the run's, nor are their bytes.
void warn_of_slow_products(const Settings& settings) {
  const std::string slow = slow_products(settings);
  cpu_ledger(Home::host).reset_peaks();
  if (!slow.empty()) std::cout << "warning: " << slow << std::endl;
}

}  // namespace

int train_command(const Settings& given, const TrainOptions& options, const std::string& command_line) {
  // Before anything else, so that a signal while the run opens still leaves a checkpoint and a summary.
  StopSignal::listen();
  const World world = world_from([](const char* name) { return std::getenv(name); });
  const ChosenDevice chosen = device_of_rank(given, world);
  const Settings asked = on_device(given, chosen.device);
  Ranks ranks(world, asked.parallel);
  ranks.require_same("settings", digest_of(asked));
  const Settings settings = settings_of_rank(asked, ranks);
  if (!chosen.note.empty()) std::cout << chosen.note << std::endl;
  refuse_used_folder(settings, options, *ranks.data().control);
  if (const std::string warning = without_its_card(given, chosen.device); !warning.empty())
    print_line(warning);
  use_threads(settings);
  const DryRun predicted = dry_run_of_rank(settings, world.rank, predicted_gpu(chosen.device));
  const BudgetCheck check =
      check_budget(settings, given, predicted, predicted_gpu(chosen.device), options.pinned);
  if (on_any_rank(*ranks.data().control, !check.refusal.empty())) {
    std::cerr << check.refusal;
    return 3;
  }
  std::cout << check.note << std::flush;
  warn_of_slow_products(settings);
  try {
    if (chosen.device.is_cuda()) ranks.connect(chosen.device);
    return run_training(settings, options, command_line, predicted, ranks);
  } catch (const SharedMistake&) {
    throw;
  } catch (const UserError& error) {
    if (world.rank == 0) throw;
    throw RankError(world.rank, error);
  }
}

}  // namespace moelab
