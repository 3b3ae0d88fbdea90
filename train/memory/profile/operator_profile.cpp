#include "train/memory/profile/operator_profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/collection.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <variant>

#include "kernels/memory/device_memory.h"
#include "moe/settings/error.h"

namespace moelab {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::EventType;
using torch::profiler::impl::ExtraFields;
using torch::profiler::impl::Result;

struct TimedEvent {
  int64_t nanoseconds;
  MemoryEvent event;
};

// `owner`: the innermost operator around `node` that is not a factory, or else the outermost factory.
void collect(const Result& node, const std::string& owner, c10::Device device,
             std::vector<TimedEvent>& into) {
  if (const auto* block = std::get_if<ExtraFields<EventType::Allocation>>(&node.extra_fields_)) {
    if (block->device_type_ == device.type())
      into.push_back({node.start_time_ns_, {block->ptr_, block->alloc_size_, owner}});
    return;
  }
  const bool is_operator = std::holds_alternative<ExtraFields<EventType::TorchOp>>(node.extra_fields_);
  const std::string name = is_operator ? node.name() : owner;
  const bool takes_over = owner.empty() || !is_factory(name);
  for (const auto& child : node.children_) collect(*child, takes_over ? name : owner, device, into);
}

std::vector<MemoryEvent> memory_events(const profiler::ProfilerResult& result, c10::Device device) {
  std::vector<TimedEvent> timed;
  for (const auto& root : result.event_tree()) collect(*root, "", device, timed);
  // stable: keeps the order within each thread
  std::stable_sort(timed.begin(), timed.end(),
                   [](const TimedEvent& a, const TimedEvent& b) { return a.nanoseconds < b.nanoseconds; });
  std::vector<MemoryEvent> events;
  for (TimedEvent& t : timed) {
    if (t.event.owner.empty()) t.event.owner = "(outside of operators)";
    events.push_back(std::move(t.event));
  }
  return events;
}

}  // namespace

OperatorProfile::OperatorProfile(c10::Device device)
    : device_(device), held_(device_memory(device).allocated) {
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, /*report_input_shapes=*/false,
                                        /*profile_memory=*/true);
  std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU};
  if (device.is_cuda()) activities.insert(profiler::ActivityType::CUDA);
  setenv("KINETO_LOG_LEVEL", "99", 0);  // otherwise kineto complains on standard error if there is no GPU
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

OperatorProfile::~OperatorProfile() {
  if (recording_) profiler::disableProfiler();
}

OperatorTable OperatorProfile::finish(const std::filesystem::path& trace) {
  recording_ = false;
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  // kineto does not report that it cannot write, so this checks
  const bool can_write = std::ofstream(trace).is_open();
  if (can_write) result->save(trace.string());
  std::error_code error;
  if (!can_write || std::filesystem::file_size(trace, error) == 0 || error)
    throw UserError("cannot write " + trace.string() + ": is the disk full or the folder read-only?");
  return operator_memory(memory_events(*result, device_), held_);
}

}  // namespace moelab
