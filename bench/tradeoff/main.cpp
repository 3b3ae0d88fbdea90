// Measures what each technique costs in speed and saves in memory: trains the same model in every way of the
// table of techniques, each run a process of its own, in rounds, and appends a record a run to a file. Exit
// codes as moelab's: 0, also when runs failed, for that is a result; 2 for a mistake of the user's; 128 + N
// when signal N stopped it.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <iostream>

#include "bench/tradeoff/process.h"
#include "bench/tradeoff/sweep.h"
#include "moe/settings/error.h"

namespace moelab::tradeoff {
namespace {

namespace fs = std::filesystem;

// Long enough for steps past warm-up, short enough for two rounds and more of all rows on two cores.
constexpr int64_t kQuickSteps = 8, kQuickRounds = 3;
constexpr double kQuickSeconds = 340;

struct Options {
  CaseOptions cases{"moe-micro", 20};
  SweepOptions sweep;
  fs::path out;
  bool quick = false;
};

// As seen from here, for a command that can be repeated in another copy of the checkout.
fs::path beside_this_program(const char* name) {
  std::error_code none;
  const fs::path path = fs::proximate(fs::read_symlink("/proc/self/exe", none).parent_path() / name, none);
  return path.has_parent_path() ? path : "." / path;
}

void declare(CLI::App& app, Options& options) {
  SweepOptions& sweep = options.sweep;
  sweep.rounds = 5;
  sweep.timeout_seconds = 900;
  sweep.program = beside_this_program("moelab");
  app.add_option("--out", options.out, "file of records; a sweep that was interrupted goes on in it")
      ->required()
      ->type_name("FILE");
  app.add_option("--model", options.cases.model, "named model or YAML file of settings")
      ->capture_default_str()
      ->type_name("NAME|FILE");
  app.add_option("--only", options.cases.only, "rows of `moelab techniques`; the baseline is run besides")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME,…");
  app.add_option("--rounds", sweep.rounds, "how often each case is run")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--case-steps", options.cases.steps, "optimizer steps a run")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--timeout", sweep.timeout_seconds, "seconds after which a run is killed")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 1e9));
  app.add_flag("--quick", options.quick, "short runs, and no round that would end after six minutes");
  app.add_option("--program", sweep.program, "moelab; default: the one beside this program")
      ->type_name("FILE");
  app.add_option("settings", options.cases.overrides,
                 "changes for all cases, e.g. data.path=data/python-stdlib")
      ->type_name("KEY=VALUE");
}

void finish(const CLI::App& app, Options& options) {
  if (options.quick) {
    if (app.count("--case-steps") == 0) options.cases.steps = kQuickSteps;
    if (app.count("--rounds") == 0) options.sweep.rounds = kQuickRounds;
    options.sweep.budget_seconds = kQuickSeconds;
  }
  options.sweep.model = options.cases.model;
  options.sweep.work = options.out.string() + ".work";
  if (::access(options.sweep.program.c_str(), X_OK) != 0)
    throw UserError("--program " + options.sweep.program.string() +
                    " is no program; build moelab, or say where it is");
}

int run(const Options& options) {
  const HeldSignals signals;
  const std::vector<Case> cases = make_cases(options.cases);
  RecordStore store(options.out);
  fs::create_directories(options.sweep.work);
  const Provenance from = provenance(options.sweep.program, options.sweep.work / "git");
  const int signal = Sweep(options.sweep, cases, from, store, std::cout).run();
  std::cout << store.size() << " records in " << options.out.string() << std::endl;
  return signal == 0 ? 0 : 128 + signal;
}

}  // namespace
}  // namespace moelab::tradeoff

int main(int argc, char** argv) {
  using namespace moelab::tradeoff;
  CLI::App app("Measures what each memory technique costs in speed", "bench_tradeoff");
  Options options;
  declare(app, options);
  try {
    app.parse(argc, argv);
    finish(app, options);
    return run(options);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    std::cerr << "bench_tradeoff: command line: " << error.what() << "; see bench_tradeoff --help\n";
    return 2;
  } catch (const moelab::UserError& error) {
    std::cerr << "bench_tradeoff: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "bench_tradeoff: internal error: " << error.what() << "\n";
    return 1;
  }
}
