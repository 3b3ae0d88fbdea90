#include "train/loop/recovery.h"

namespace moelab {

Recovery::Recovery(const Settings& settings, c10::Device device, MemoryWatch& memory)
    : settings_(settings), device_(device), memory_(memory) {}

Reading Recovery::note_refusal(int64_t steps, int64_t step) {
  if (device_.is_cpu()) {
    refusal_ = cpu_ledger().refusal();
    cpu_ledger().clear_refused();
  }
  memory_.inspector.refused(refusal_);
  const Reading reading = memory_.monitor.observe(step);
  // the CPU's budget is of requested bytes, whatever the allocator holds besides
  const double pieces = device_.is_cpu() ? 0 : fragmentation(reading);
  symptom_ = {steps, false, recoveries_, pieces, !memory_.leaks.found().empty()};
  return reading;
}

void Recovery::note_opening() {
  if (refusal_ || !device_.is_cpu()) return;
  refusal_ = cpu_ledger().refusal();
  memory_.inspector.refused(refusal_);
}

std::optional<RecoveryPlan> Recovery::after(const RefusedStep& refused) {
  if (!settings_.memory.recover) return std::nullopt;
  const std::optional<RecoveryPlan> plan = refused.half_written ? go_back() : repeat(refused);
  if (plan) ++recoveries_;
  return plan;
}

std::optional<RecoveryPlan> Recovery::go_back() {
  if (!last_checkpoint_ || went_back_to_ == last_checkpoint_) return std::nullopt;
  went_back_to_ = last_checkpoint_;
  return RecoveryPlan{.checkpoint = last_checkpoint_, .action = {.release_cached = true}};
}

std::optional<RecoveryPlan> Recovery::repeat(const RefusedStep& refused) {
  std::optional<MemoryAction> action = memory_.manager.after_refusal(refused.steps + 1, refused.limit);
  if (!action && settings_.optim.in_backward && repeated_after_ != refused.steps) {
    repeated_after_ = refused.steps;
    action = MemoryAction{.release_cached = true};
  }
  if (!action) return std::nullopt;
  return RecoveryPlan{.checkpoint = std::nullopt, .action = *action};
}

}  // namespace moelab
