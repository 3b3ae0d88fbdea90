#include "train/program/qualify/worker.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "kernels/operator/gpu_timer.h"
#include "moe/settings/error.h"
#include "train/io/child_process.h"
#include "train/program/qualify/qualify_json.h"

namespace moelab {
namespace {

using Json = nlohmann::json;

Json task_json(const WorkerTask& task) {
  return {{"gpu", task.gpu}, {"sizes", sizes_json(task.sizes)}, {"skipped", task.skipped}};
}

bool has_probe(std::span<const OperatorProbe> probes, const VariedOperator* op) {
  return std::any_of(probes.begin(), probes.end(),
                     [&](const OperatorProbe& probe) { return probe.op == op; });
}

std::string death(int end, const std::string& said) {
  const std::string how = end < 0 ? fmt::format("signal {}", -end) : fmt::format("exit code {}", end);
  return fmt::format("crashed: {}{}", how, said.empty() ? "" : ", " + said);
}

// What one worker has tried, and why it ended before all was.
class Worker {
 public:
  Worker(const std::string& program, const WorkerTask& task)
      : child_({program, "qualify", "--worker", task_json(task).dump()}) {}

  // Adds what it tries. The variant that ended it is the last one. False: it began none.
  bool listen(std::vector<TriedVariant>& tried, double patience) {
    while (const std::optional<std::string> line = child_.read_line(patience)) take(*line, tried);
    if (child_.is_silent()) {
      child_.end();
      return blame(fmt::format("hung: no answer for {:g} s", patience), tried);
    }
    const int end = child_.wait();
    if (end == 0 && !trying_) return done_ = true;
    if (end == -SIGINT || end == -SIGTERM) throw UserError("qualify: stopped by a signal");
    return blame(death(end, said_), tried);
  }
  bool done() const { return done_; }
  const std::string& said() const { return said_; }

 private:
  void take(const std::string& line, std::vector<TriedVariant>& tried) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("operator")) {
      if (said_.empty()) said_ = line;
    } else if (json.contains("failure")) {
      tried.push_back(tried_of(json));
      trying_.reset();
    } else {
      trying_ = {json.at("operator"), json.at("variant")};
      said_.clear();
    }
  }

  bool blame(const std::string& failure, std::vector<TriedVariant>& tried) {
    if (!trying_) {
      said_ = failure;
      return false;
    }
    trying_->failure = failure;
    tried.push_back(*trying_);
    return true;
  }

  ChildProcess child_;
  std::optional<TriedVariant> trying_;
  std::string said_;  // the first line since then that is no JSON: an error message
  bool done_ = false;
};

}  // namespace

void run_worker(const std::string& text) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Json json = Json::parse(text);
  const auto skipped = json.at("skipped").get<std::set<std::string>>();
  const c10::Device gpu(c10::kCUDA, json.at("gpu").get<c10::DeviceIndex>());
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(gpu);
  const std::vector<OperatorProbe> probes = expert_probes(sizes_of(json.at("sizes")), gpu);
  use_kernels({});  // beside the one that is tried all are plain, so that its failure is its own
  for (VariedOperator* op : varied_operators()) {
    for (size_t v = 0; v < op->variants().size() && has_probe(probes, op); ++v) {
      if (skipped.contains(op->name() + "/" + op->variants()[v])) continue;
      std::cout << Json{{"operator", op->name()}, {"variant", op->variants()[v]}} << std::endl;
      std::cout << tried_json(try_variant(*op, v, probes, &gpu_milliseconds_of)) << std::endl;
    }
  }
}

std::vector<TriedVariant> try_in_workers(const std::string& program, WorkerTask task, double patience) {
  std::vector<TriedVariant> tried;
  while (true) {
    Worker worker(program, task);
    if (!worker.listen(tried, patience)) throw UserError("qualify: " + worker.said());
    if (worker.done()) return tried;
    for (const TriedVariant& one : tried) task.skipped.insert(one.op + "/" + one.variant);
  }
}

}  // namespace moelab
