#include "train/program/commands/train_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/report.h"
#include "moe/name_hash.h"
#include "moe/settings/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/data/tokenizer/tokenizer.h"
#include "train/io/terminal.h"
#include "train/loop/run_failure.h"
#include "train/loop/train_loop.h"
#include "train/predict/advice.h"
#include "train/predict/savings.h"
#include "train/program/commands/device_choice.h"
#include "train/program/commands/open_run.h"
#include "train/program/commands/resume.h"
#include "train/program/commands/run_model.h"
#include "train/program/commands/stop_signal.h"
#include "train/program/qualify/kernel_choice.h"
#include "train/program/record/progress.h"
#include "train/program/record/run_folder.h"
#include "train/program/record/run_record.h"
#include "train/settings/convert.h"
#include "train/step/compute_type.h"
#include "train/step/flops.h"

namespace moelab {
namespace {

bool stopped() { return StopSignal::received() != nullptr; }

constexpr int64_t kSampledTokens = 4096;
constexpr std::string_view kOverwrite = " --overwrite";

// What all ranks must have alike of the data: its length and both ends, of each source.
std::vector<int64_t> digest_of(const Dataset& data) {
  std::vector<int64_t> digest;
  for (const Source& source : data.train) {
    const int64_t tokens = source.tokens.size(), count = std::min(tokens, kSampledTokens);
    std::vector<int64_t> ends(static_cast<size_t>(2 * count));
    const std::span<int64_t> all(ends);
    source.tokens.copy(0, all.first(static_cast<size_t>(count)));
    source.tokens.copy(tokens - count, all.last(static_cast<size_t>(count)));
    const std::string_view bytes(reinterpret_cast<const char*>(ends.data()), ends.size() * sizeof(int64_t));
    digest.insert(digest.end(), {tokens, static_cast<int64_t>(name_hash(bytes))});
  }
  return digest;
}

// The ranks that write checkpoints with this one: those that divide the state, or the first alone. Null:
// none.
Communicator* checkpoint_ranks(Ranks& ranks) {
  Communicator* const dividing = ranks.data().checkpoint;
  return dividing->size() > 1 || ranks.world().rank == 0 ? dividing : nullptr;
}

// One run of moelab train: opens what a TrainLoop drives, records what it does, and always ends the run
// properly, whatever happened.
class TrainRun : LoopObserver {
 public:
  TrainRun(const Settings& settings, const TrainOptions& options, const std::string& command_line,
           const DryRun& predicted, Ranks& ranks)
      : settings_(settings),
        options_(options),
        command_line_(command_line),
        device_(open_device(settings, ranks.world())),
        gemm_rate_(gemm_rate_before_run()),
        predict_held_([gpu = predicted_gpu(device_)](const Settings& s) { return dry_run(s, gpu).held(); }),
        data_(open_data(settings)),
        predicted_(predicted),
        ranks_(ranks),
        model_(
            settings, data_, device_, [this] { return asked_to_stop(); }, ranks.data()),
        loop_(
            settings, device_, data_,
            {[this] { return asked_to_stop(); }, predict_held_, options.before_step, checkpoint_ranks(ranks),
             ranks.data().control, [&ranks](bool asks) { return ranks.meet_again(asks); }},
            model_, *this),
        progress_(settings, tokens_are_bytes(data_), gemm_rate_) {
    ranks_.require_same("data in data.path", digest_of(data_));
    print_start(settings, device_, predicted);
    model_.on_samples(
        [this](int64_t step, const std::vector<SampleText>& texts) { record_->add(step, texts); });
    set_limit(device_, settings.memory.limit.count);
    try {
      open();
    } catch (const std::exception& error) {
      failure_.note(error);
      if (!failure_.out_of_memory()) throw;
    }
    if (has_ended()) return;
    open_folder();
    open_record();
  }

  int run() {
    if (!record_) {
      say_ended();
      return 0;
    }
    try {
      if (loop_.state_consistent()) train();
    } catch (const std::exception& error) {
      failure_.note(error);
    }
    return finish();
  }

 private:
  // Before the run, so that its lines can state a share of the rate. The run's peaks do not count what the
  // products took. 0: a GPU has no room for them, which the run itself will say better.
  double gemm_rate_before_run() const {
    double rate = 0;
    try {
      rate = measure_gemm_rate(compute_type(settings_.precision), device_);
    } catch (const c10::OutOfMemoryError&) {
    }
    release_workspaces(device_);
    release_cached(device_);  // how large the products are is a matter of time
    reset_peaks(device_);
    cpu_ledger(Home::host).reset_peaks();
    return rate;
  }

  // All ranks ask together, and all stop when one of them was told to.
  bool asked_to_stop() {
    stop_ = stop_ || on_any_rank(*ranks_.data().control, stopped());
    return stop_;
  }
  std::string stop_reason() const {
    return stopped() ? StopSignal::received() : stop_ ? "a signal to another rank" : "";
  }

  // The command that goes on from the last checkpoint. Ranks are started by another, which is not known here.
  std::string way_on() const {
    if (!ranks_.alone()) return "--resume latest goes on from there";
    std::string command = command_line_;
    if (options_.overwrite) command.erase(command.find(kOverwrite), kOverwrite.size());
    return "this goes on from there: " + command +
           (options_.resume == "latest" || options_.resume == "auto" ? "" : " --resume latest");
  }

  void open() {
    std::optional<LoadedCheckpoint> checkpoint;
    if (!options_.resume.empty())
      checkpoint = find_checkpoint(options_.resume, settings_, *ranks_.data().control);
    if (device_.is_cuda()) take_kernels_of_first_rank(checkpoint);
    model_.open(predicted_.update_bytes);
    // by the checkpoint that was found: the one that was named may be damaged and set aside now
    goes_on_ = checkpoint && goes_on_in_folder(settings_, checkpoint->path.string());
    if (checkpoint) {
      loop_.resume(*checkpoint);
    } else if (!settings_.train.init.empty()) {
      model_.load_weights(settings_.train.init);
    }
    loop_.model_is_open();
  }

  // Before the model takes memory, of which trying kernels needs some.
  void take_kernels_of_first_rank(const std::optional<LoadedCheckpoint>& checkpoint) {
    const bool kept = checkpoint && checkpoint->files.contains("kernels.json");
    std::string line;
    on_first_rank(*ranks_.data().control, [&] {
      line = take_kernels(settings_, device_, kept ? &checkpoint->files.at("kernels.json") : nullptr);
    });
    use_kernels_of(of_first_rank(*ranks_.data().control, kernels_json().dump()));
    if (!line.empty()) std::cout << line << std::endl;
  }

  // What an earlier run left in the folder is deleted only now that this one is open and can begin. The first
  // rank deletes for all; the others then clear their own folders, which may be on other machines.
  void open_folder() {
    const bool first = ranks_.world().rank == 0;
    if (first) take_folder();
    wait_for_all(*ranks_.data().control);
    if (!first) take_folder();
  }
  void take_folder() {
    const bool first = ranks_.world().rank == 0;
    folder_.emplace(settings_, first);
    loop_.open_checkpoints();
    if (!goes_on_) folder_->clear(options_.overwrite && first);
  }

  void open_record() {
    record_ = RunRecord(settings_, device_, command_line_, loop_.first_step());
    model_.drop_samples_after(loop_.first_step());
  }

  // Whether the run in run.dir has already ended where train.steps does. Then nothing is trained or recorded.
  bool has_ended() {
    const bool ended = goes_on_ && loop_.first_step() >= settings_.train.steps && ranks_.world().rank == 0 &&
                       ended_after(settings_, loop_.first_step());
    return !of_first_rank(*ranks_.data().control, ended ? "ended" : "").empty();
  }
  void say_ended() const {
    std::cout << "the checkpoint is after step " << loop_.first_step()
              << ", where train.steps ends; a larger train.steps goes on\n";
  }

  void train() {
    if (loop_.first_step() > 0 && loop_.first_step() >= settings_.train.steps) say_ended();
    loop_.run();
    if (stop_) {
      std::cout << stop_reason() << ": stopped after step " << loop_.steps()
                << (loop_.saves_checkpoints() ? "; " + way_on() : "") << "\n";
    } else {
      ending_.held_out_loss = loop_.evaluate();
    }
  }

  // LoopObserver
  void opened(const Reading& memory) override { record_->opened(memory); }
  void step_taken(const StepTaken& step) override {
    record_->add(step);
    progress_.step(step, *record_);
    advise_once(step.memory);
  }
  void evaluated(int64_t step, double loss, int64_t batches) override {
    progress_.held_out(step, loss, batches);
  }
  void evaluation_made_up(int64_t step, double loss) override { record_->add_held_out_loss(step, loss); }
  void saving() override { record_->save_timeline(); }
  void went_back(int64_t) override {
    record_->save_timeline();
    open_record();
  }
  void say(const std::string& line) override { print_line(line); }

  // Tries each part of the end even if another failed. The exit code and the summary report the run's first
  // failure.
  int finish() {
    if (!failure_.reason().empty()) ranks_.leave();
    const bool out_of_memory = failure_.out_of_memory();
    if (out_of_memory || loop_.memory_status() != MemoryStatus::normal)
      failure_.attempt([&] { seek_advice(); });
    if (out_of_memory && refused_here()) failure_.attempt([&] { explain_refusal(); });
    save_last();
    failure_.attempt([&] { loop_.memory().inspector.finish(); });
    failure_.attempt([&] { describe_end(); });
    failure_.attempt([&] { record_->write_memory(ending_); });
    write_summary();
    if (failure_.out_of_memory()) {
      print_oom_end();
      return 3;
    }
    failure_.rethrow();
    print_end(settings_, loop_.steps(), ending_, *record_);
    return 0;
  }

  // With the first reading of each status above normal: what would take the run back to its target. Of
  // several ranks none has time for dry runs while the others wait.
  void advise_once(const Reading& memory) {
    if (memory.status <= advised_ || settings_.monitor.quiet || !ranks_.alone()) return;
    advised_ = memory.status;
    const auto target = static_cast<int64_t>(static_cast<double>(memory.limit) * settings_.memory.target);
    const std::string lines = advice_lines(advise(loop_.settings_now(), predict_held_, target));
    if (!lines.empty())
      print_line(fmt::format("[Step {}] memory is at {}; to stay within memory.target={}, ", memory.step,
                             status_name(memory.status), value_text(settings_.memory.target)) +
                 lines.substr(0, lines.size() - 1));
  }

  void seek_advice() {
    ending_.advice = advise(loop_.settings_now(), predict_held_, device_memory(device_).limit);
  }

  void save_last() {
    const bool out_of_memory = failure_.out_of_memory();
    // When a rank has failed, others may have been interrupted anywhere; they go on from the last checkpoint.
    const bool whole = failure_.reason().empty() || ranks_.alone() ||
                       (out_of_memory && ranks_.data().checkpoint->size() == 1);
    const bool worth_saving =
        whole && (out_of_memory ? loop_.steps() > loop_.first_step()
                                : loop_.steps() > 0 || stop_ || settings_.train.steps == 0);
    const std::string lost = failure_.attempt([&] { loop_.finish_saving(worth_saving); });
    if (!lost.empty() && out_of_memory) std::cerr << "moelab: " << lost << "\n";
    ending_.saves = loop_.save_costs();
  }

  void describe_end() {
    MemoryWatch& memory = loop_.memory();
    // The end of the run (evaluation, or the refused step) counts in the peaks too.
    memory.monitor.observe(loop_.steps());
    ending_.peaks = memory.monitor.run_peaks();
    ending_.predicted = predicted_;
    if (model_.is_open()) {
      ending_.state = model_.state_bytes();
      ending_.stage_seconds = model_.stage_seconds();
    }
    ending_.host_bytes = cpu_ledger(Home::host).peak();
    if (failure_.reason().empty())
      ending_.rank_peaks = of_all_ranks(*ranks_.data().control, ending_.peaks.allocated);
    ending_.sent_bytes = ranks_.sent_bytes();
    ending_.exchange_seconds = ranks_.exchange_seconds();
    ending_.recoveries = loop_.recovery().recoveries();
    ending_.leaks = memory.leaks.found();
    ending_.gemm_rate = gemm_rate_;
    ending_.savings = technique_savings(loop_.settings_now(), predict_held_);
  }

  void write_summary() {
    if (!failure_.reason().empty()) ending_.status = failure_.out_of_memory() ? "oom" : "error";
    ending_.reason = failure_.reason();
    if (ending_.reason.empty()) ending_.reason = stop_reason();
    const std::string lost = failure_.attempt([&] { record_->write_summary(ending_); });
    if (!lost.empty() && lost != failure_.reason())
      std::cerr << "moelab: no summary of this run: " << lost << "\n";
  }

  void explain_refusal() {
    set_limit(device_, 0);  // what the run's end needs is small
    loop_.recovery().note_opening();
    const Refusal refusal = last_refusal();
    std::cerr << refusal_message(refusal, ending_.advice,
                                 likely_cause(loop_.settings_now(), refusal, loop_.recovery().symptom()));
  }

  // Of several ranks one may have run out of memory for all.
  bool refused_here() const { return ranks_.alone() || loop_.recovery().refusal() || device_.is_cuda(); }
  Refusal last_refusal() const {
    return loop_.recovery().refusal().value_or(Refusal{.limit = settings_.memory.limit.count});
  }

  void print_oom_end() const {
    if (model_.is_open() && !loop_.state_consistent()) {
      std::cerr << "the update of step " << loop_.steps() + 1
                << " was half done, and there is no checkpoint to go back to\n";
    }
    const char* saved = loop_.saved() ? "; --resume latest goes on from there" : "";
    const int64_t limit = last_refusal().limit;
    const std::string cause =
        !refused_here() ? "another rank has no more memory"
        : limit > 0     ? "the memory budget of " + human_bytes(limit) + " cannot be met"
                        : std::string(device_.is_cuda() ? "the GPU" : "the machine") + " has no more memory";
    std::cerr << "moelab: " << cause << " after step " << loop_.steps() << saved << "; summary in "
              << settings_.run.dir << "\n";
  }

  Settings settings_;
  TrainOptions options_;
  std::string command_line_;
  c10::Device device_;
  double gemm_rate_;  // 0: not known
  PredictPeak predict_held_;
  MemoryStatus advised_ = MemoryStatus::normal;  // the highest with advice so far
  Dataset data_;
  DryRun predicted_;
  Ranks& ranks_;
  bool stop_ = false;     // agreed by all ranks
  bool goes_on_ = false;  // with the run that is in run.dir
  std::optional<RunFolder> folder_;
  RunModel model_;
  TrainLoop loop_;
  Progress progress_;
  std::optional<RunRecord> record_;
  RunRecord::Ending ending_;
  RunFailure failure_;
};

}  // namespace

Gpu predicted_gpu(c10::Device device) { return device.is_cuda() ? gpu_at(device) : Gpu{}; }

int run_training(const Settings& settings, const TrainOptions& options, const std::string& command_line,
                 const DryRun& predicted, Ranks& ranks) {
  return TrainRun(settings, options, command_line, predicted, ranks).run();
}

}  // namespace moelab
