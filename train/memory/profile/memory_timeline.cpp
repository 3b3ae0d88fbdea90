#include "train/memory/profile/memory_timeline.h"

#include <algorithm>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/io/json_text.h"

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;

// Throws UserError where it is no count.
int64_t number(const Json& entry, const char* key) {
  if (const std::optional<int64_t> count = as_count(entry.at(key))) return *count;
  throw UserError(std::string(key) + " is no count");
}

}  // namespace

Json held_kinds(const KindBytes& bytes) {
  Json out = Json::object();
  for (const auto& [name, count] : kind_report(bytes))
    if (count > 0) out[name] = count;
  return out;
}

Json held_kinds_by_phase(const std::array<KindBytes, kPhases>& bytes) {
  Json out = Json::object();
  for (size_t i = 0; i < kPhases; ++i)
    if (bytes[i] != KindBytes{}) out[std::string(phase_name(static_cast<Phase>(i)))] = held_kinds(bytes[i]);
  return out;
}

void MemoryTimeline::add(const Reading& r, int64_t micro_batch) {
  append({{"step", r.step},
          {"allocated_bytes", r.allocated},
          {"reserved_bytes", r.reserved},
          {"peak_bytes", r.peak},
          {"limit_bytes", r.limit},
          {"micro_batch", micro_batch},
          {"fragmentation", fragmentation(r)},
          {"status", status_name(r.status)},
          {"bytes_by_phase", held_kinds_by_phase(r.by_phase)}});
}

// Steps 1 … span_ share an entry, as do the next span_ steps, and so on.
void MemoryTimeline::append(Json entry) {
  const auto slot = [this](const Json& of) { return (number(of, "step") - 1) / span_; };
  if (entries_.empty() || slot(entries_.back()) != slot(entry)) {
    entries_.push_back(std::move(entry));
  } else if (number(entry, "peak_bytes") > number(entries_.back(), "peak_bytes")) {
    entries_.back() = std::move(entry);
  }
  if (entries_.size() <= kEntries) return;
  span_ *= 2;
  std::vector<Json> all;
  all.swap(entries_);
  for (Json& one : all) append(std::move(one));
}

void MemoryTimeline::continue_from(const Json& memory, int64_t last) {
  try {
    span_ = std::max<int64_t>(1, number(memory, "steps_per_entry"));
    for (const Json& entry : memory.at("steps")) {
      if (number(entry, "step") > last || !entry.contains("peak_bytes")) continue;
      number(entry, "peak_bytes");  // append() compares it with other entries' alone
      append(entry);
    }
  } catch (const Json::exception&) {  // written by an older program, or truncated
    *this = {};
  } catch (const UserError&) {  // by other hands
    *this = {};
  }
}

}  // namespace moelab
