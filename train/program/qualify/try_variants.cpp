#include "train/program/qualify/try_variants.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "train/program/qualify/agreement.h"

namespace moelab {
namespace {

class ChosenScope {
 public:
  ChosenScope(VariedOperator& op, size_t variant) : op_(op), before_(op.chosen()) { op.choose(variant); }
  ~ChosenScope() { op_.choose(before_); }
  ChosenScope(const ChosenScope&) = delete;
  ChosenScope& operator=(const ChosenScope&) = delete;

 private:
  VariedOperator& op_;
  size_t before_;
};

Results call_once(const Trial& trial) {
  trial.restore();
  return trial.call();
}

Results reference_of(const Trial& trial, VariedOperator& op) {
  if (trial.reference) return trial.reference();
  const ChosenScope plain(op, 0);
  return call_once(trial);
}

std::string disagreement_in(const OperatorProbe& probe, const Trial& trial) {
  const Results want = reference_of(trial, *probe.op), got = call_once(trial);
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string why = disagreement(got[i], want[i], trial.terms);
    if (!why.empty()) return fmt::format("wrong with {}, result {}: {}", probe.inputs, i + 1, why);
  }
  return "";
}

void check_and_time(TriedVariant& result, const OperatorProbe& probe, const Timer& timer) {
  const Trial trial = probe.make();
  result.failure = disagreement_in(probe, trial);
  if (result.failure.empty() && probe.is_timed) result.milliseconds += timer([&] { trial.call(); });
}

}  // namespace

TriedVariant try_variant(VariedOperator& op, size_t variant, std::span<const OperatorProbe> probes,
                         const Timer& timer) {
  const ChosenScope chosen(op, variant);
  TriedVariant result{op.name(), op.variants()[variant]};
  for (const OperatorProbe& probe : probes) {
    if (probe.op != &op || !result.failure.empty()) continue;
    try {
      check_and_time(result, probe, timer);
    } catch (const c10::OutOfMemoryError&) {
      result.failure = "no memory to try " + probe.inputs;
    }
  }
  return result;
}

KernelChoice fastest_variants(std::span<const TriedVariant> tried) {
  KernelChoice choice;
  for (const VariedOperator* op : varied_operators()) {
    const TriedVariant* best = nullptr;
    for (const TriedVariant& one : tried) {
      if (one.op != op->name() || !one.failure.empty()) continue;
      if (best == nullptr || one.milliseconds <= best->milliseconds) best = &one;
    }
    choice[op->name()] = best == nullptr ? op->variants().front() : best->variant;
  }
  return choice;
}

}  // namespace moelab
