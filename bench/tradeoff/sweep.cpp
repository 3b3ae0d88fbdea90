#include "bench/tradeoff/sweep.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "bench/tradeoff/outcome.h"
#include "bench/tradeoff/process.h"
#include "train/config/shell_line.h"

namespace moelab::tradeoff {
namespace fs = std::filesystem;
namespace {

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::ostringstream text;
  text << std::put_time(&parts, "%Y-%m-%dT%H:%M:%SZ");
  return text.str();
}

// "4:05", minutes and seconds.
std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  std::ostringstream text;
  text << whole / 60 << ":" << std::setw(2) << std::setfill('0') << whole % 60;
  return text.str();
}

Json settings_json(const Overrides& settings) {
  Json json = Json::object();
  for (const auto& [key, value] : settings) json[key] = value;
  return json;
}

// What a person wants to know of a run at once.
std::string outcome_text(const Json& record) {
  if (record["status"] != "ok")
    return record["status"].get<std::string>() + " (" + record["message"].get<std::string>() + ")";
  const Json& summary = record["summary"];
  const Json& rate = summary["tokens_per_second"]["median"];  // null when no step was timed
  std::ostringstream text;
  text << std::fixed << std::setprecision(0) << (rate.is_number() ? rate.get<double>() : 0.0)
       << " tokens/s, peak " << std::setprecision(1) << summary["peak_bytes"].get<double>() / (1 << 20)
       << " MiB";
  return text.str();
}

}  // namespace

Sweep::Sweep(const SweepOptions& options, std::vector<Case> cases, const Provenance& provenance,
             RecordStore& store, std::ostream& progress)
    : options_(options),
      cases_(std::move(cases)),
      provenance_(provenance),
      store_(store),
      progress_(progress) {
  const std::vector<Slot> slots = schedule(cases_.size(), options_.rounds);
  planned_ = slots.size();
  std::copy_if(slots.begin(), slots.end(), std::back_inserter(pending_),
               [&](const Slot& slot) { return !store_.has(key(slot)); });
}

int Sweep::run() {
  progress_ << cases_.size() << " cases x " << options_.rounds << " rounds, " << planned_ - pending_.size()
            << " of " << planned_ << " runs done before" << std::endl;
  int64_t round = 0;
  while (!pending_.empty()) {
    const Slot slot = pending_.front();
    if (slot.round != round && !fits_budget(slot.round)) {
      progress_ << "the next round would pass the time set: " << pending_.size()
                << " runs are left; the same command goes on" << std::endl;
      break;
    }
    round = slot.round;
    if (held_signal() != 0 || !measure(slot)) {
      progress_ << "stopped; the same command goes on with the " << pending_.size() << " runs that are left"
                << std::endl;
      break;
    }
  }
  fs::remove_all(options_.work);
  return held_signal();
}

RunKey Sweep::key(const Slot& slot) const {
  const Case& one = cases_[slot.case_index];
  return {one.name, slot.round, one.hash, provenance_.commit, provenance_.machine.dump()};
}

std::vector<std::string> Sweep::command(const Case& one) const {
  std::vector<std::string> words = {options_.program.string(), "train", "--config", options_.model};
  Overrides settings = one.settings;
  change(settings, "run.name", one.name);
  change(settings, "run.dir", (options_.work / "run").string());
  for (const auto& [key, value] : settings) words.push_back(key + "=" + value);
  return words;
}

// False when a signal cut it off.
bool Sweep::measure(const Slot& slot) {
  const Case& one = cases_[slot.case_index];
  const std::vector<std::string> words = command(one);
  const fs::path log = options_.work / "log";
  fs::remove_all(options_.work);
  fs::create_directories(options_.work);
  const std::string started = utc_now();
  const Exit exit = run_process(words, log, options_.timeout_seconds);
  if (exit.why == Exit::Why::stopped) return false;
  const Outcome outcome = read_outcome(exit, options_.work / "run", log);
  const Json record = {{"schema", kRecordSchema},
                       {"case", one.name},
                       {"techniques", one.techniques},
                       {"against", one.against.empty() ? Json(nullptr) : Json(one.against)},
                       {"model", options_.model},
                       {"round", slot.round},
                       {"position", slot.position},
                       {"settings", settings_json(one.settings)},
                       {"settings_hash", one.hash},
                       {"command", shell_line(words)},
                       {"commit", provenance_.commit},
                       {"dirty", provenance_.dirty},
                       {"machine", provenance_.machine},
                       {"started", started},
                       {"wall_seconds", exit.seconds},
                       {"exit_code", exit.code},
                       {"status", outcome.status},
                       {"message", outcome.message},
                       {"summary", outcome.summary},
                       {"steps", outcome.steps},
                       {"gradient_norms", outcome.gradient_norms},
                       {"memory", outcome.memory}};
  store_.append(record);
  pending_.erase(pending_.begin());
  spent_ += exit.seconds;
  ++ran_;
  print(record);
  return true;
}

void Sweep::print(const Json& record) {
  const std::string total = std::to_string(planned_);
  progress_ << "[" << std::setw(static_cast<int>(total.size())) << planned_ - pending_.size() << "/" << total
            << "] round " << record["round"] << ", " << record["case"].get<std::string>() << ": "
            << outcome_text(record) << "; " << clock_text(record["wall_seconds"].get<double>()) << " taken, "
            << clock_text(seconds_left(options_.rounds)) << " left" << std::endl;
}

// Of the runs up to that round. One that was never made is taken for an average one.
double Sweep::seconds_left(int64_t last_round) const {
  const double average = ran_ > 0 ? spent_ / static_cast<double>(ran_) : 0;
  double left = 0;
  for (const Slot& slot : pending_) {
    const Case& one = cases_[slot.case_index];
    if (slot.round <= last_round) left += store_.seconds(one.name, one.hash).value_or(average);
  }
  return left;
}

// The first round of a sweep always does, or it would get nowhere.
bool Sweep::fits_budget(int64_t round) const {
  return options_.budget_seconds == 0 || ran_ == 0 || spent_ + seconds_left(round) <= options_.budget_seconds;
}

}  // namespace moelab::tradeoff
