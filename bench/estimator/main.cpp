// How far `moelab estimate` is from what it predicts: draws small configurations, runs each on the CPU for
// two steps beside its dry run, and appends a record of both to a file. Exit code 0; 1 on a defect.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/estimator/draw.h"
#include "kernels/memory/ledger.h"
#include "tests/train/run/random_run.h"
#include "train/run/dry_run.h"
#include "train/run/open_run.h"

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  int64_t draws = 200, first = 0;
  uint64_t seed = 1;
  std::string out, nvme_path = std::filesystem::temp_directory_path();
};

// Tensor bytes of a run: at the peak of each home without library scratch, of the state after the last step
// wherever it lies, and the scratch that the peak with it has on top.
struct Bytes3 {
  int64_t device, host, nvme, state, scratch;
};

int64_t state_of(const Ledger& ledger) {
  const KindBytes kinds = ledger.by_kind();
  int64_t sum = 0;
  for (const Kind kind : {Kind::parameters, Kind::parameter_experts, Kind::master, Kind::optimizer})
    sum += kinds[static_cast<size_t>(kind)];
  return sum;
}

Bytes3 measure(const Settings& s) {
  std::vector<Batch> batches;
  for (int64_t i = 0; i < 2 * s.train.accumulation; ++i) {
    const HomeScope outside(Home::host);
    batches.push_back(test::random_batch(s, i, 0, s.train.micro_batch));
  }
  Ledger &device = cpu_ledger(), &host = cpu_ledger(Home::host), &nvme = cpu_ledger(Home::nvme);
  const int64_t before = device.allocated(), host_before = host.allocated();
  device.enter_phase(Phase::init);
  for (Ledger* ledger : {&device, &host, &nvme}) ledger->reset_peaks();
  Trainer trainer(s, at::kCPU, [&](int64_t step, int64_t first, int64_t) {
    return batches[step * s.train.accumulation + first / s.train.micro_batch];
  });
  trainer.step(0);
  trainer.step(1);
  if (s.eval.batches > 0) trainer.evaluate([&](int64_t) { return batches[0]; }, 1);
  const int64_t peak = device.tensor_peak();
  return {peak - before, host.tensor_peak() - host_before, nvme.peak(),
          state_of(device) + state_of(host) + state_of(nvme), device.peak() - peak};
}

Json record_of(const Draw& draw, int64_t number, const DryRun& predicted, const Bytes3& measured) {
  const auto& state = predicted.state;
  return {{"schema", 1},
          {"draw", number},
          {"overrides", draw.overrides},
          {"peak_bytes", {{"predicted", predicted.peak}, {"measured", measured.device}}},
          {"host_bytes", {{"predicted", predicted.host_peak}, {"measured", measured.host}}},
          {"nvme_bytes", {{"predicted", predicted.nvme_peak}, {"measured", measured.nvme}}},
          {"state_bytes", {{"predicted", state.parameters + state.optimizer}, {"measured", measured.state}}},
          {"scratch_bytes", measured.scratch}};
}

double error_of(const Json& record) {
  const Json& peak = record["peak_bytes"];
  return std::abs(peak["predicted"].get<double>() / peak["measured"].get<double>() - 1);
}

int run(const Options& options) {
  std::ofstream out(options.out, std::ios::app);
  std::vector<double> errors;
  int64_t wrong_states = 0;
  double scratch = 0;
  for (int64_t i = options.first; i < options.first + options.draws; ++i) {
    const Draw draw = draw_settings(options.seed, i, options.nvme_path);
    use_threads(draw.settings);
    const DryRun predicted = dry_run(draw.settings);
    const Bytes3 measured = measure(draw.settings);
    const Json record = record_of(draw, i, predicted, measured);
    out << record.dump() << "\n";
    errors.push_back(error_of(record));
    wrong_states += record["state_bytes"]["predicted"] != record["state_bytes"]["measured"];
    scratch = std::max(scratch, static_cast<double>(measured.scratch) / static_cast<double>(measured.device));
  }
  out.close();
  if (!out) throw std::runtime_error("cannot write " + options.out);
  std::sort(errors.begin(), errors.end());
  std::cout << fmt::format(
      "{} configurations: tensor bytes at the peak wrong by {:.3f} % (median), {:.2f} % (worst); state bytes "
      "differ in {}; library scratch on top at most {:.2f} %\n",
      errors.size(), 100 * errors[errors.size() / 2], 100 * errors.back(), wrong_states, 100 * scratch);
  return 0;
}

}  // namespace
}  // namespace moelab

int main(int argc, char** argv) {
  moelab::install_allocators();
  CLI::App app("Compares predicted with measured memory over drawn configurations", "bench_estimator");
  moelab::Options options;
  app.add_option("--out", options.out, "file that records are appended to")->required();
  app.add_option("--draws", options.draws, "how many configurations")->check(CLI::Range(1, 1000000));
  app.add_option("--first", options.first, "number of the first one");
  app.add_option("--seed", options.seed, "the same seed draws the same ones");
  app.add_option("--nvme-path", options.nvme_path, "folder of what is nvme");
  CLI11_PARSE(app, argc, argv);
  try {
    return moelab::run(options);
  } catch (const std::exception& error) {
    std::cerr << "bench_estimator: " << error.what() << "\n";
    return 1;
  }
}
