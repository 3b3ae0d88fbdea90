#include "kernels/memory/ledger.h"

#include <algorithm>

#include "kernels/memory/allocators.h"

namespace moelab {
namespace {

constexpr std::array<std::string_view, kKinds> kKindNames = {
    "other",       "parameters", "parameter_experts", "gradients",        "optimizer",          "master",
    "activations", "attention",  "routing",           "capacity_buffers", "activation_experts", "loss_head",
    "kv_cache",    "reference",  "communication",     "scratch"};
constexpr std::array<std::string_view, kPhases> kPhaseNames = {"init", "forward", "backward", "step"};

thread_local Kind current_kind = Kind::other;
thread_local Home current_home = Home::device;

size_t at(Kind kind) { return static_cast<size_t>(kind); }
size_t at(Phase phase) { return static_cast<size_t>(phase); }

// Never destroyed: tensors in static variables release their blocks after main.
Ledger& ledger(std::array<Ledger, 3>* ledgers, Home home) { return (*ledgers)[static_cast<size_t>(home)]; }

}  // namespace

std::string_view kind_name(Kind kind) { return kKindNames[at(kind)]; }
std::string_view phase_name(Phase phase) { return kPhaseNames[at(phase)]; }

bool Ledger::charge(size_t bytes, Kind kind) {
  const std::lock_guard lock(mutex_);
  const auto n = static_cast<int64_t>(bytes);
  const bool injected = refuse_after_ == 0;
  if (refuse_after_ >= 0) --refuse_after_;
  if (injected || (limit_ > 0 && (n > limit_ || allocated_ > limit_ - n))) {
    record_refusal(bytes);
    return false;
  }
  allocated_ += n;
  kind_[at(kind)] += n;
  note_peak();
  return true;
}

void Ledger::release(size_t bytes, Kind kind) {
  const std::lock_guard lock(mutex_);
  allocated_ -= static_cast<int64_t>(bytes);
  kind_[at(kind)] -= static_cast<int64_t>(bytes);
}

void Ledger::retag(size_t bytes, Kind from, Kind to) {
  const std::lock_guard lock(mutex_);
  kind_[at(from)] -= static_cast<int64_t>(bytes);
  kind_[at(to)] += static_cast<int64_t>(bytes);
}

int64_t Ledger::allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_;
}

int64_t Ledger::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

int64_t Ledger::tensor_peak() const {
  const std::lock_guard lock(mutex_);
  return tensor_peak_;
}

int64_t Ledger::phase_peak(Phase phase) const {
  const std::lock_guard lock(mutex_);
  return phase_peak_[at(phase)];
}

int64_t Ledger::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}

void Ledger::set_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

KindBytes Ledger::by_kind() const {
  const std::lock_guard lock(mutex_);
  return kind_;
}

KindBytes Ledger::by_kind_at_peak() const {
  const std::lock_guard lock(mutex_);
  return kind_at_peak_;
}

KindBytes Ledger::by_kind_at_phase_peak(Phase phase) const {
  const std::lock_guard lock(mutex_);
  return kind_at_phase_peak_[at(phase)];
}

bool Ledger::refused() const {
  const std::lock_guard lock(mutex_);
  return refusal_.has_value();
}

int64_t Ledger::refused_bytes() const {
  const std::lock_guard lock(mutex_);
  return refusal_ ? refusal_->requested : 0;
}

std::optional<Refusal> Ledger::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void Ledger::clear_refused() {
  const std::lock_guard lock(mutex_);
  refusal_.reset();
}

void Ledger::note_refusal(size_t bytes) {
  const std::lock_guard lock(mutex_);
  record_refusal(bytes);
}

void Ledger::refuse_after(int64_t count) {
  const std::lock_guard lock(mutex_);
  refuse_after_ = count;
}

int64_t Ledger::refuse_after() const {
  const std::lock_guard lock(mutex_);
  return refuse_after_;
}

void Ledger::enter_phase(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  note_peak();
}

void Ledger::reset_peaks() {
  const std::lock_guard lock(mutex_);
  phase_peak_.fill(0);
  phase_peak_[at(phase_)] = peak_ = allocated_;
  tensor_peak_ = allocated_ - kind_[at(Kind::scratch)];
  kind_at_peak_ = kind_;
  kind_at_phase_peak_.fill({});
  kind_at_phase_peak_[at(phase_)] = kind_;
}

void Ledger::note_peak() {
  if (allocated_ > phase_peak_[at(phase_)]) {
    phase_peak_[at(phase_)] = allocated_;
    kind_at_phase_peak_[at(phase_)] = kind_;
  }
  if (allocated_ > peak_) {
    peak_ = allocated_;
    kind_at_peak_ = kind_;
  }
  tensor_peak_ = std::max(tensor_peak_, allocated_ - kind_[at(Kind::scratch)]);
}

void Ledger::record_refusal(size_t bytes) {
  refusal_ = Refusal{static_cast<int64_t>(bytes), allocated_, limit_, phase_, kind_};
}

Ledger& cpu_ledger(Home home) {
  static auto* ledgers = new std::array<Ledger, 3>{Ledger("device"), Ledger("host"), Ledger("nvme")};
  return ledger(ledgers, home);
}

Ledger& meta_ledger(Home home) {
  static auto* ledgers =
      new std::array<Ledger, 3>{Ledger("meta device"), Ledger("meta host"), Ledger("meta nvme")};
  return ledger(ledgers, home);
}

void install_allocators() {
  install_cpu_allocator();
  install_meta_allocator();
}

KindScope::KindScope(Kind kind) : previous_(current_kind) { current_kind = kind; }
KindScope::~KindScope() { current_kind = previous_; }
Kind KindScope::current() { return current_kind; }

HomeScope::HomeScope(Home home) : previous_(current_home) { current_home = home; }
HomeScope::~HomeScope() { current_home = previous_; }
Home HomeScope::current() { return current_home; }

}  // namespace moelab
