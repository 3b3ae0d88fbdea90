#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/checkpoint/checkpoint.h"
#include "train/generate/sample_text.h"
#include "train/io/unnamed_file.h"
#include "train/loop/loop_observer.h"
#include "train/memory/monitor.h"
#include "train/memory/profile/memory_timeline.h"
#include "train/parallel/exchange_clock.h"
#include "train/predict/dry_run.h"
#include "train/predict/savings.h"
#include "train/program/tensorboard/event_file.h"
#include "train/settings/settings.h"
#include "train/step/trainer.h"

namespace moelab {

// The files that a run leaves in run.dir: config.yaml, metrics.jsonl (one line per step, flushed),
// TensorBoard event files with the same numbers, memory.json and summary.json (docs/training.md). Numbers
// that are not finite are written as null.
class RunRecord {
 public:
  // Writes config.yaml to the folder, which exists, and deletes the summary. With first_step > 0 the run
  // resumes after that step: metrics.jsonl and memory.json are cut back to it and continued. Otherwise they
  // start empty. Throws UserError when the folder can't be written.
  RunRecord(const Settings& settings, c10::Device device, const std::string& command_line,
            int64_t first_step);

  // Memory used to open the run, before its first step.
  void opened(const Reading& memory);
  void add(const StepTaken& step);
  // The held-out loss after the step that this run was resumed from, which its line lacks.
  void add_held_out_loss(int64_t step, double loss);
  // Writes memory.json up to now, for a run that may be cut short and resumed.
  void save_timeline() const;

  struct Ending {
    std::string status = "ok";  // ok, oom, error
    std::string reason;         // the error's message or the signal that stopped the run; else empty
    double held_out_loss = std::numeric_limits<double>::quiet_NaN();
    DryRun predicted;
    RunPeaks peaks;
    Trainer::StateBytes state;
    int64_t host_bytes = 0;  // the peak of Home::host
    SaveCosts saves;
    double gemm_rate = 0;  // 0: not measured
    std::vector<TechniqueSaving> savings;
    std::vector<Advice> advice;       // settings still open, if the last step was near or past its limit
    int64_t recoveries = 0;           // times that memory ran out and the run continued
    std::vector<int64_t> rank_peaks;  // bytes, of each rank
    // Bytes that this rank has sent, by axis and use; empty: one rank.
    std::vector<std::pair<std::string, int64_t>> sent_bytes;
    ExchangeClock::Seconds exchange_seconds;  // with the other ranks
    StageSeconds stage_seconds;               // of a pipeline
    std::vector<std::string> leaks;           // the monitor's reports of leaks
  };
  // Each replaces its file through a temporary file and throws UserError when that fails. Disk space for
  // summary.json was set aside at the start, so it can be written even if the disk has filled up.
  void write_memory(const Ending& ending) const;
  void write_summary(const Ending& ending);

  // Texts written after `step`, for TensorBoard.
  void add(int64_t step, const std::vector<SampleText>& samples);

  // Medians so far, warm-up left out.
  double median_step_ms() const;
  double median_tokens_per_second() const;
  double median_flops_per_second() const;  // the model's operations, recomputation left out

  // Of all steps so far, those before the run was resumed included.
  struct Totals {
    int64_t tokens = 0;
    double seconds = 0;  // of steps
  };
  const Totals& totals() const { return totals_; }

  // How long steps stood still for what is on the host or in a file (StepReport::waited), of all steps since
  // the run was opened.
  struct Waits {
    double seconds = 0;
    int64_t steps = 0;  // that waited at all
    double share = 0;   // of the time of all steps
  };
  Waits waits_for(Home home) const;

 private:
  void continue_metrics(const std::string& kept);
  double flops_per_token() const;
  nlohmann::ordered_json summary(const Ending& ending) const;
  nlohmann::ordered_json timeline_json() const;

  Settings settings_;
  c10::Device device_;
  std::string command_line_;
  std::filesystem::path folder_;
  std::optional<UnnamedFile> room_;  // for summary.json; none if disk or file system had none to spare
  std::ofstream metrics_;
  std::optional<EventFile> events_;
  MemoryTimeline timeline_;
  Reading opened_, last_;                // the last step's
  std::vector<double> step_ms_, rates_;  // of each step; rates_ in tokens per second
  std::vector<HomeSeconds> waited_;      // of each step
  int64_t tokens_ = 0, places_ = 0;      // sums over the steps of StepReport's counts
  double pairs_ = 0;                     // query-key pairs, summed likewise
  int64_t steps_ = 0;
  Totals totals_;
  double final_loss_;
};

}  // namespace moelab
