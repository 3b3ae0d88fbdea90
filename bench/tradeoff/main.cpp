// Measures what each technique costs in speed and saves in memory: trains the same model in every way that
// the table of techniques, or a plan, lists. Each run is its own process; runs come in rounds, and each
// appends a record to a file. Exit codes as moelab's: 0 even if runs failed, since that is a result; 2 for a
// user's mistake; 128 + N when signal N stopped it.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>

#include "bench/tradeoff/predictions.h"
#include "bench/tradeoff/process.h"
#include "bench/tradeoff/sweep.h"
#include "moe/settings/error.h"
#include "train/settings/assign.h"

namespace moelab::tradeoff {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string plan;  // empty: all rows of the table
  std::string part = "1/1";
  bool quick = false, full = false;
  std::string model = "moe-micro";
  std::vector<std::string> only, links, overrides;
  int64_t rounds = 5, steps = 20;
  SweepOptions sweep;
  fs::path out;
};

// Relative to the current folder, so that a command can be repeated in another copy of the checkout.
fs::path beside_this_program(const char* name) {
  std::error_code none;
  const fs::path path = fs::proximate(fs::read_symlink("/proc/self/exe", none).parent_path() / name, none);
  return path.has_parent_path() ? path : "." / path;
}

void declare(CLI::App& app, Options& options) {
  SweepOptions& sweep = options.sweep;
  sweep.timeout_seconds = 900;
  sweep.spread = 0.1;
  sweep.extra_rounds = 2;
  sweep.program = beside_this_program("moelab");
  sweep.scripts = fs::proximate(MOELAB_SCRIPTS);
  app.add_option("--out", options.out, "file of records; a sweep that was interrupted goes on in it")
      ->required()
      ->type_name("FILE");
  CLI::Option* plan =
      app.add_option("--plan", options.plan, "what to measure; default: the rows of `moelab techniques`")
          ->type_name("quick|full|ranks|FILE");
  CLI::Option* quick = app.add_flag("--quick", options.quick,
                                    "--plan quick: moe-pico unless --model is given, under six minutes");
  app.add_flag("--full", options.full, "--plan full: ninety minutes at a time")->excludes(plan, quick);
  quick->excludes(plan);
  app.add_option("--model", options.model, "named model or YAML file of settings; parts of a plan may differ")
      ->capture_default_str()
      ->type_name("NAME|FILE");
  app.add_option("--only", options.only, "cases to measure, by name, and what each is compared with")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME,…");
  app.add_option(
         "--part", options.part,
         "the Ith of N portions, for N machines or jobs: their files of records, put together by cat, "
         "are those of the whole")
      ->capture_default_str()
      ->type_name("I/N");
  app.add_option("--rounds", options.rounds, "runs of each case; replaces the number that a plan states")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--case-steps", options.steps,
                 "optimizer steps in a run; replaces the number that a plan states")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option(
         "--spread", sweep.spread,
         "a case is run again while half the 95 % interval of its speed is more than this share of the speed")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--extra-rounds", sweep.extra_rounds,
                 "most such repetitions of a case; one that still spreads is marked noisy")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  app.add_option("--timeout", sweep.timeout_seconds, "seconds after which a run is killed")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 1e9));
  app.add_option("--links", options.links,
                 "what the ranks of rows with several send over: unlimited (the default), or rates such as "
                 "10Gbit; replaces the links that a plan states")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("LINK,…");
  app.add_option("--program", sweep.program, "moelab; default: the one beside this program")
      ->type_name("FILE");
  app.add_option("settings", options.overrides, "changes for all cases, e.g. data.path=data/python-stdlib")
      ->type_name("KEY=VALUE");
}

SweepPlan plan_of(const CLI::App& app, const Options& options) {
  const std::string name = options.quick ? "quick" : options.full ? "full" : options.plan;
  if (name.empty() && app.count("--plan") == 0) {
    SweepPlan plan = plan_of_all_rows(options.rounds, options.steps);
    plan.parts.front().model = options.model;
    return plan;
  }
  SweepPlan plan = load_plan(name);
  const std::string& model = plan.model.empty() || app.count("--model") > 0 ? options.model : plan.model;
  for (PlanPart& part : plan.parts) {
    if (part.model.empty()) part.model = model;
    if (app.count("--rounds") > 0) part.rounds = options.rounds;
    if (app.count("--case-steps") > 0) part.steps = options.steps;
  }
  return plan;
}

// The plan with the links that the command line names, if it names any.
SweepPlan over_links(SweepPlan plan, const std::vector<std::string>& names) {
  std::vector<Link> links;
  for (const std::string& name : names) links.push_back(link_of(name));
  for (PlanPart& part : plan.parts)
    if (!links.empty()) part.links = links;
  return plan;
}

void check_names(const std::vector<std::string>& only, const std::vector<SweepPart>& parts) {
  std::vector<std::string> names;
  for (const SweepPart& part : parts)
    for (const Case& one : part.cases) names.push_back(one.name);
  for (const std::string& name : only)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw UserError("--only: unknown case " + name + did_you_mean(name, names));
}

// The plan's parts, with the wanted cases.
std::vector<SweepPart> parts_of(const SweepPlan& plan, const Options& options) {
  std::vector<SweepPart> parts;
  for (const PlanPart& part : plan.parts)
    parts.push_back({part.name, part.rounds, make_cases(part, options.overrides), part.seeds});
  if (!options.only.empty()) check_names(options.only, parts);
  const Portion own = portion_of(options.part);
  int64_t before = 0;
  for (SweepPart& part : parts) {
    if (!options.only.empty()) part.cases = selected(part.cases, options.only);
    part.cases = portion(part.cases, own, before);
  }
  std::erase_if(parts, [](const SweepPart& part) { return part.cases.empty(); });
  return parts;
}

// Asks moelab for the peaks of pairs and for what fits, writes the answers next to the records, and chooses
// the plan's pairs. False if a signal came first.
bool predict(SweepPlan& plan, const Options& options, const Provenance& from) {
  const fs::path folder = options.out.has_parent_path() ? options.out.parent_path() : ".";
  const fs::path scratch = options.sweep.work / "log";
  const std::string program = options.sweep.program.string();
  for (PlanPart& part : plan.parts) {
    if (part.pairs == 0) continue;
    std::vector<std::string> words = {program, "techniques", "--pairs", "--json", "--config", part.model};
    const std::vector<std::string> settings = common_settings(part, options.overrides);
    words.insert(words.end(), settings.begin(), settings.end());
    const std::optional<Json> answer = ask(words, from, scratch);
    if (!answer) return false;
    write_json(folder / "predictions.json", *answer);
    part.two = largest_savings(*answer, part.pairs);
  }
  if (plan.fits.empty()) return true;
  const std::optional<Json> answer = ask({program, "fits", "--json", "--config", plan.fits}, from, scratch);
  if (answer) write_json(folder / "fits.json", *answer);
  return answer.has_value();
}

struct WorkFolder {
  explicit WorkFolder(const fs::path& folder) : path(folder) { fs::create_directories(path); }
  ~WorkFolder() {
    std::error_code none;
    fs::remove_all(path, none);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  fs::path path;
};

int run(SweepPlan plan, Options& options) {
  const HeldSignals signals;
  const auto start = std::chrono::steady_clock::now();
  std::vector<SweepPart> parts = parts_of(plan, options);  // mistakes are found before anything is written
  RecordStore store(options.out);
  const WorkFolder work(options.out.string() + ".work");
  options.sweep.work = work.path;
  options.sweep.rounds_before = portion_of(options.part).rounds_before();
  const Provenance from = provenance(options.sweep.program, options.sweep.work / "version");
  if (options.only.empty()) {
    if (!predict(plan, options, from)) return 128 + held_signal();
    parts = parts_of(plan, options);
  }
  if (plan.minutes > 0) {
    const std::chrono::duration<double> predicted = std::chrono::steady_clock::now() - start;
    options.sweep.budget_seconds = std::max(60 * plan.minutes - predicted.count(), 1.0);
  }
  const int signal = Sweep(options.sweep, parts, from, store, std::cout).run();
  std::cout << store.size() << " records in " << options.out.string() << std::endl;
  return signal == 0 ? 0 : 128 + signal;
}

void check_program(const fs::path& program) {
  if (::access(program.c_str(), X_OK) != 0)
    throw UserError("--program " + program.string() + " is no program; build moelab, or say where it is");
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
    check_program(options.sweep.program);
    return run(over_links(plan_of(app, options), options.links), options);
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
