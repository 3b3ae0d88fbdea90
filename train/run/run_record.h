#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint.h"
#include "train/config/settings.h"
#include "train/files/unnamed_file.h"
#include "train/loop/loop_observer.h"
#include "train/memory/monitor.h"
#include "train/memory/savings.h"
#include "train/profile/memory_timeline.h"
#include "train/run/dry_run.h"
#include "train/run/trainer.h"
#include "train/watch/event_file.h"

namespace moelab {

// The files that a run leaves in run.dir: config.yaml, metrics.jsonl (a line a step, flushed) and the same
// numbers as TensorBoard event files, memory.json and summary.json (docs/training.md).
// Numbers that are not finite are written as null.
class RunRecord {
 public:
  // Creates the folder, writes config.yaml and deletes the summary of a run before. With first_step > 0 the
  // run resumes after that step: metrics.jsonl and memory.json are cut back to it and continued; else they
  // start anew. Throws UserError when the folder can't be written.
  RunRecord(const Settings& settings, c10::Device device, const std::string& command_line,
            int64_t first_step);

  // What opening the run took, before its first step.
  void opened(const Reading& memory);
  void add(const StepTaken& step);
  // Writes memory.json as far as it goes, for a run that is cut short and resumed.
  void save_timeline() const;

  struct Ending {
    std::string status = "ok";  // ok, oom, error
    std::string reason;         // the error's message, or the signal that stopped the run; empty: neither
    double held_out_loss = std::numeric_limits<double>::quiet_NaN();
    DryRun predicted;
    RunPeaks peaks;
    Trainer::StateBytes state;
    int64_t host_bytes = 0;  // the peak of Home::host
    SaveCosts saves;
    double gemm_rate = 0;  // 0: not measured
    std::vector<TechniqueSaving> savings;
    std::vector<Advice> advice;      // what is open, where the last step was near its limit or past it
    int64_t recoveries = 0;          // times that memory ran out and the run went on
    std::vector<std::string> leaks;  // what the monitor said of them
  };
  // Each writes its file by a temporary one and a rename, and throws UserError when that fails. For
  // summary.json room was set aside at the start: a disk that filled up meanwhile still takes it.
  void write_memory(const Ending& ending) const;
  void write_summary(const Ending& ending);

  // Medians so far, warm-up left out.
  double median_step_ms() const;
  double median_tokens_per_second() const;

 private:
  nlohmann::ordered_json summary(const Ending& ending) const;
  nlohmann::ordered_json timeline_json() const;

  Settings settings_;
  c10::Device device_;
  std::string command_line_;
  std::filesystem::path folder_;
  std::optional<UnnamedFile> room_;  // for summary.json; none where the folder or the disk had none to spare
  std::ofstream metrics_;
  std::optional<EventFile> events_;
  MemoryTimeline timeline_;
  Reading opened_, last_;                // the last step's
  std::vector<double> step_ms_, rates_;  // of each step; tokens a second
  int64_t tokens_ = 0, places_ = 0;      // as StepReport's
  double pairs_ = 0;                     // likewise
  int64_t steps_ = 0;
  double final_loss_;
};

}  // namespace moelab
