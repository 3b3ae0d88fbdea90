#pragma once
#include <nlohmann/json.hpp>
#include <vector>

#include "train/memory/monitor.h"

namespace moelab {

// {"parameters": bytes, "parameters.experts": bytes, …} as kind_report() names them, without those of 0
// bytes.
nlohmann::ordered_json held_kinds(const KindBytes& bytes);
// {"forward": held_kinds, …}, at each phase's peak; phases that were not entered are left out.
nlohmann::ordered_json held_kinds_by_phase(const std::array<KindBytes, kPhases>& bytes);

// The memory of a run's steps, by phase and kind, as memory.json holds it: `steps`, a list that never passes
// kEntries. Past that, an entry stands for twice as many steps (`steps_per_entry`), and is the one among them
// that peaked highest.
class MemoryTimeline {
 public:
  static constexpr size_t kEntries = 512;

  // Steps rise from call to call.
  void add(const Reading& reading, int64_t micro_batch);
  // Continues that of a memory.json, up to step `last`. What is no such text adds nothing.
  void continue_from(const nlohmann::ordered_json& memory, int64_t last);

  nlohmann::ordered_json steps() const { return entries_; }
  int64_t steps_per_entry() const { return span_; }

 private:
  void append(nlohmann::ordered_json entry);

  std::vector<nlohmann::ordered_json> entries_;
  int64_t span_ = 1;
};

}  // namespace moelab
