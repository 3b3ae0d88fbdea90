#include "train/program/record/run_record.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>
#include <thread>

#include "kernels/dense/fp8.h"
#include "kernels/memory/report.h"
#include "kernels/operator/variants.h"
#include "moe/settings/error.h"
#include "train/io/json_lines.h"
#include "train/io/json_text.h"
#include "train/io/proc_file.h"
#include "train/io/whole_file.h"
#include "train/memory/profile/inspector.h"
#include "train/program/record/build_commit.h"
#include "train/program/record/gpu_name.h"
#include "train/program/tensorboard/metric_scalars.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/print.h"
#include "train/step/flops.h"

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

constexpr int64_t kSummaryRoom = int64_t{64} << 10;  // bytes, several times a summary's

std::optional<UnnamedFile> set_aside(const fs::path& folder) {
  try {
    UnnamedFile room(folder);
    room.allocate(0, kSummaryRoom);
    return room;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

Json machine(c10::Device device) {
  const std::string gpu = gpu_name(device);
  return {{"cpu", cpu_name()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads", at::get_num_threads()},
          {"gpu", gpu.empty() ? Json(nullptr) : Json(gpu)},
          {"torch", TORCH_VERSION}};
}

// The file's JSON object; empty if there is none that can be read.
Json read_json(const fs::path& path) {
  std::ifstream in(path);
  Json json = Json::parse(in, nullptr, false);
  return json.is_object() ? json : Json::object();
}

Json ranks_json(const RunRecord::Ending& ending) {
  Json ranks = Json::array();
  for (const int64_t peak : ending.rank_peaks) ranks.push_back({{"peak_bytes", peak}});
  return ranks;
}

Json communication(const RunRecord::Ending& ending, bool pipeline) {
  Json sent = Json::object();
  for (const auto& [use, bytes] : ending.sent_bytes) sent[use] = bytes;
  const auto [under_way, waited] = ending.exchange_seconds;
  Json communication = {{"sent_bytes", sent},
                        {"seconds", under_way},
                        {"waited_seconds", waited},
                        {"hidden_share", number(1 - waited / under_way)}};
  if (pipeline) {
    const StageSeconds& stage = ending.stage_seconds;
    communication["stage"] = {{"forward_seconds", stage.forward},
                              {"backward_seconds", stage.backward},
                              {"waited_seconds", stage.waited}};
  }
  return communication;
}

// Without the warm-up.
std::vector<double> measured(const std::vector<double>& step_ms) {
  return {step_ms.begin() + warm_up_steps(static_cast<int64_t>(step_ms.size())), step_ms.end()};
}

// Of the lines of a metrics.jsonl.
RunRecord::Totals totals_of(const std::string& lines) {
  RunRecord::Totals totals;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const Json step = Json::parse(line);
    const Json tokens = step.value("tokens", Json()), milliseconds = step.value("step_ms", Json());
    totals = {as_count(tokens).value_or(0),
              totals.seconds + (milliseconds.is_number() ? milliseconds.get<double>() / 1000 : 0)};
  }
  return totals;
}

// Between two values by a straight line.
double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place), above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

Json spread(const std::vector<double>& values) {
  return {{"median", number(quantile(values, 0.5))},
          {"p10", number(quantile(values, 0.1))},
          {"p90", number(quantile(values, 0.9))}};
}

Json waits_json(const RunRecord::Waits& waits) {
  return {{"seconds", waits.seconds}, {"steps", waits.steps}, {"share", waits.share}};
}

Json kinds(const KindBytes& bytes) {
  Json out = Json::object();
  for (const auto& [name, count] : kind_report(bytes)) out[name] = count;
  return out;
}

Json phases(const std::array<int64_t, kPhases>& peaks) {
  Json out = Json::object();
  for (size_t i = 0; i < kPhases; ++i) out[std::string(phase_name(static_cast<Phase>(i)))] = peaks[i];
  return out;
}

// What the memory monitor knows at the end: the last step's memory, and what each active technique saves.
Json monitor_answers(const Reading& last, const RunRecord::Ending& ending) {
  Json saved = Json::object();
  for (const TechniqueSaving& saving : ending.savings) saved[saving.name] = saving.bytes;
  Json open = Json::object();
  for (const Advice& advice : ending.advice) open[advice.setting] = advice.saves;
  return {{"status", status_name(last.status)},
          {"share", last.share},
          {"fragmentation", fragmentation(last)},
          {"activations_bytes", activation_bytes(last.by_kind)},
          {"estimated_activations_bytes", activation_bytes(ending.predicted.by_kind_at_peak)},
          {"saved_bytes_by_technique", saved},
          {"open_bytes_by_setting", open},
          {"recoveries", ending.recoveries},
          {"leaks", ending.leaks}};
}

// Bytes of the batches read ahead and the current one: 8 per token and 8 per target; packed rows add 4 per
// token for the start of its document.
int64_t data_bytes(const Settings& s) {
  const int64_t batches = s.data.workers * s.data.prefetch + 1;
  return batches * s.train.micro_batch * s.train.row() * (s.train.tokens_per_device > 0 ? 20 : 16);
}

}  // namespace

RunRecord::RunRecord(const Settings& settings, c10::Device device, const std::string& command_line,
                     int64_t first_step)
    : settings_(settings),
      device_(device),
      command_line_(command_line),
      folder_(settings.run.dir),
      final_loss_(std::numeric_limits<double>::quiet_NaN()) {
  std::error_code error;
  fs::remove(folder_ / "summary.json", error);  // a failure shows up when the file is replaced
  write_whole(folder_ / "config.yaml", print_settings(settings));
  continue_metrics(first_step > 0 ? json_lines_up_to(folder_ / "metrics.jsonl", first_step) : "");
  events_.emplace(folder_, first_step);
  room_ = set_aside(folder_);
  if (first_step > 0) timeline_.continue_from(read_json(folder_ / "memory.json"), first_step);
}

void RunRecord::continue_metrics(const std::string& kept) {
  metrics_.close();
  write_whole(folder_ / "metrics.jsonl", kept);
  totals_ = totals_of(kept);
  metrics_.open(folder_ / "metrics.jsonl", std::ios::app);
  if (!metrics_) throw UserError("cannot write " + (folder_ / "metrics.jsonl").string());
}

void RunRecord::add_held_out_loss(int64_t step, double loss) {
  const std::string kept = json_lines_up_to(folder_ / "metrics.jsonl", step - 1);
  std::string last = json_lines_up_to(folder_ / "metrics.jsonl", step).substr(kept.size());
  if (last.empty()) return;  // the folder is another's: no line to complete
  Json line = Json::parse(last);
  line["held_out_loss"] = number(loss);
  continue_metrics(kept + line.dump() + "\n");
  events_->add(step, metric_scalars(Json{{"held_out_loss", number(loss)}}));
}

void RunRecord::add(const StepTaken& s) {
  const StepReport& r = s.report;
  Json line = {
      {"step", s.step},
      {"tokens", s.tokens},
      {"loss", number(r.loss)},
      {"balance_loss", number(r.balance_loss)},
      {"z_loss", number(r.z_loss)},
      {"held_out_loss", number(s.held_out_loss)},
      {"expert_load", {{"max_over_mean", number(r.load_max_over_mean)}, {"entropy", number(r.load_entropy)}}},
      {"dropped_fraction", number(r.dropped_fraction)},
      {"lr", r.lr},
      {"grad_norm", number(r.gradient_norm)},
      {"loss_scale", r.loss_scale},
      {"micro_batch", r.micro_batch},
      {"fill_rate", number(r.fill())},
      {"step_ms", s.milliseconds},
      {"waited_ms", {{"host", 1000 * r.waited.host}, {"nvme", 1000 * r.waited.nvme}}},
      {"tokens_per_second", 1000 * static_cast<double>(r.tokens) / s.milliseconds},
      {"allocated_bytes", s.memory.allocated},
      {"reserved_bytes", s.memory.reserved},
      {"peak_bytes", s.memory.peak},
      {"peak_bytes_by_kind", held_kinds(s.memory.by_kind)},
      {"status", r.skipped ? "skipped" : std::string(status_name(s.memory.status))}};
  if (r.reference_kl) line["reference_kl"] = number(*r.reference_kl);
  if (!(metrics_ << line.dump() << "\n" << std::flush))
    throw UserError("cannot write " + (folder_ / "metrics.jsonl").string() + ": is the disk full?");
  events_->add(s.step, metric_scalars(line));
  totals_ = {s.tokens, totals_.seconds + s.milliseconds / 1000};
  timeline_.add(s.memory, r.micro_batch);
  last_ = s.memory;
  step_ms_.push_back(s.milliseconds);
  waited_.push_back(r.waited);
  rates_.push_back(1000 * static_cast<double>(r.tokens) / s.milliseconds);
  tokens_ += r.tokens;
  places_ += r.places;
  pairs_ += r.pairs;
  steps_ = s.step;
  if (!r.skipped) final_loss_ = r.loss;
}

void RunRecord::opened(const Reading& memory) { opened_ = memory; }

void RunRecord::add(int64_t step, const std::vector<SampleText>& samples) {
  for (size_t i = 0; i < samples.size(); ++i)
    events_->add_text(step, "samples/" + std::to_string(i + 1), samples[i].prompt + samples[i].text);
}

Json RunRecord::timeline_json() const {
  return {
      {"schema", 1},
      {"opened", {{"peak_bytes", opened_.peak}, {"bytes_by_phase", held_kinds_by_phase(opened_.by_phase)}}},
      {"steps_per_entry", timeline_.steps_per_entry()},
      {"steps", timeline_.steps()}};
}

void RunRecord::save_timeline() const {
  write_whole(folder_ / "memory.json", timeline_json().dump(1) + "\n");
}

double RunRecord::median_step_ms() const { return quantile(measured(step_ms_), 0.5); }

double RunRecord::median_tokens_per_second() const { return quantile(measured(rates_), 0.5); }

RunRecord::Waits RunRecord::waits_for(Home home) const {
  Waits waits;
  for (const HomeSeconds& step : waited_) {
    const double seconds = home == Home::nvme ? step.nvme : step.host;
    waits.seconds += seconds;
    waits.steps += seconds > 0 ? 1 : 0;
  }
  const double all = std::accumulate(step_ms_.begin(), step_ms_.end(), 0.0) / 1000;
  if (waits.seconds > 0) waits.share = waits.seconds / all;
  return waits;
}

double RunRecord::flops_per_token() const {
  return model_flops_per_token(settings_.model, pairs_ / static_cast<double>(tokens_));
}

double RunRecord::median_flops_per_second() const { return flops_per_token() * median_tokens_per_second(); }

Json RunRecord::summary(const Ending& e) const {
  const std::vector<double> ms = measured(step_ms_), rates = measured(rates_);
  const double flops = median_flops_per_second();
  const bool cuda = device_.is_cuda();
  return {
      {"schema", 1},
      {"status", e.status},
      {"reason", e.reason.empty() ? Json(nullptr) : Json(e.reason)},
      {"commit", build_commit()},
      {"command", command_line_},
      {"machine", machine(device_)},
      {"device", cuda ? "cuda" : "cpu"},
      {"model",
       {{"preset", settings_.model.preset},
        {"parameters", parameter_count(settings_.model)},
        {"active_parameters", active_parameter_count(settings_.model)}}},
      {"settings", settings_json(settings_)},
      {"fp8_products", settings_.precision.compute != ComputePrecision::fp8 ? Json(nullptr)
                       : has_fp8_products(device_)                          ? Json("_scaled_mm")
                                                                            : Json("emulated")},
      {"kernels", cuda ? Json(kernels_in_use()) : Json(nullptr)},
      {"steps", steps_},
      {"fill_rate", number(static_cast<double>(tokens_) / static_cast<double>(places_))},
      {"tokens_per_second", spread(rates)},
      {"step_ms", spread(ms)},
      {"waited", {{"host", waits_json(waits_for(Home::host))}, {"nvme", waits_json(waits_for(Home::nvme))}}},
      {"peak_bytes", e.peaks.allocated},
      {"peak_tensor_bytes", e.peaks.tensors},
      {"peak_bytes_by_phase", phases(e.peaks.by_phase)},
      {"peak_bytes_by_kind", kinds(e.peaks.by_kind)},
      {"host_bytes", e.host_bytes},
      {"data_bytes_by_formula", data_bytes(settings_)},
      {"nvme_bytes", cpu_ledger(Home::nvme).peak()},
      {"ranks", ranks_json(e)},
      {"communication", communication(e, settings_.parallel.pipeline > 1)},
      {"fragmentation", e.peaks.reserved > 0 ? 1 - static_cast<double>(e.peaks.allocated) /
                                                       static_cast<double>(e.peaks.reserved)
                                             : 0.0},
      {"state_bytes",
       {{"parameters", e.state.parameters},
        {"gradients", e.state.gradients},
        {"optimizer", e.state.optimizer}}},
      {"checkpoints",
       {{"saved", e.saves.count},
        {"bytes", e.saves.last.bytes},
        {"blocked_seconds", e.saves.blocked_seconds},
        {"write_seconds", e.saves.write_seconds}}},
      {"estimated_peak_bytes", e.predicted.held()},
      {"memory_limit_bytes", settings_.memory.limit.count},
      {"final_loss", number(final_loss_)},
      {"held_out_loss", number(e.held_out_loss)},
      {"model_flops_per_token", number(flops_per_token())},
      {"flops_per_second", number(flops)},
      {"fraction_of_gemm_peak", e.gemm_rate > 0 ? number(flops / e.gemm_rate) : Json(nullptr)}};
}

void RunRecord::write_memory(const Ending& ending) const {
  Json memory = {{"schema", 1},
                 {"peak_bytes_by_phase", phases(ending.peaks.by_phase)},
                 {"peak_bytes_by_kind", kinds(ending.peaks.by_kind)},
                 {"estimated_peak_bytes_by_phase", phases(ending.predicted.phase_peak)},
                 {"estimated_peak_bytes_by_kind", kinds(ending.predicted.by_kind_at_peak)},
                 {"last_step_bytes_by_phase", held_kinds_by_phase(last_.by_phase)},
                 {"monitor", monitor_answers(last_, ending)}};
  memory.update(timeline_json());
  write_whole(folder_ / "memory.json", memory.dump(1) + "\n");
}

void RunRecord::write_summary(const Ending& ending) {
  const std::string text = summary(ending).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  room_.reset();
  write_whole(folder_ / "summary.json", text);
}

}  // namespace moelab
