#pragma once
#include <nlohmann/json.hpp>
#include <vector>

#include "train/memory/monitor.h"

namespace moelab {

// {"parameters": bytes, "parameters.experts": bytes, …} with kind_report()'s names, without kinds of 0 bytes.
nlohmann::ordered_json held_kinds(const KindBytes& bytes);
// {"forward": held_kinds, …} at each phase's peak, without phases that were not entered.
nlohmann::ordered_json held_kinds_by_phase(const std::array<KindBytes, kPhases>& bytes);

// The memory of a run's steps, by phase and kind, for memory.json. `steps` is a list of at most kEntries.
// When it would grow longer, each entry stands for twice as many steps (`steps_per_entry`): it is the one of
// them with the highest peak.
class MemoryTimeline {
 public:
  static constexpr size_t kEntries = 512;

  // Steps must ascend from call to call.
  void add(const Reading& reading, int64_t micro_batch);
  // Continues the timeline of a memory.json, up to step `last`. JSON that has none adds nothing.
  void continue_from(const nlohmann::ordered_json& memory, int64_t last);

  nlohmann::ordered_json steps() const { return entries_; }
  int64_t steps_per_entry() const { return span_; }

 private:
  void append(nlohmann::ordered_json entry);

  std::vector<nlohmann::ordered_json> entries_;
  int64_t span_ = 1;
};

}  // namespace moelab
