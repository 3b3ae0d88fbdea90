#include "bench/tradeoff/sweep.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iomanip>
#include <ostream>
#include <set>
#include <sstream>

#include "bench/tradeoff/process.h"
#include "bench/tradeoff/spread.h"
#include "train/settings/shell_line.h"

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

// The outcome in one line, for a person.
std::string outcome_text(const Json& record) {
  if (record["status"] != "ok")
    return record["status"].get<std::string>() + " (" + record["message"].get<std::string>() + ")";
  const Json& summary = record["summary"];
  const Json& rate = summary["tokens_per_second"]["median"];  // null when no step was timed
  auto peak = summary["peak_bytes"].get<double>();
  for (const Json& rank : record.value("by_rank", Json::array()))
    peak = std::max(peak, rank["peak_bytes"].get<double>());
  std::ostringstream text;
  text << std::fixed << std::setprecision(0) << (rate.is_number() ? rate.get<double>() : 0.0)
       << " tokens/s, peak " << std::setprecision(1) << peak / (1 << 20) << " MiB";
  return text.str();
}

std::vector<std::vector<size_t>> groups_in(const std::vector<Case>& cases) {
  std::vector<size_t> against;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto reference = std::find_if(cases.begin(), cases.end(),
                                        [&](const Case& other) { return other.name == cases[i].against; });
    against.push_back(reference == cases.end() ? i : static_cast<size_t>(reference - cases.begin()));
  }
  return groups_of(against);
}

}  // namespace

Sweep::Sweep(const SweepOptions& options, std::vector<SweepPart> parts, const Provenance& provenance,
             RecordStore& store, std::ostream& progress)
    : options_(options),
      parts_(std::move(parts)),
      provenance_(provenance),
      store_(store),
      progress_(progress) {
  for (SweepPart& part : parts_) {
    part.groups = groups_in(part.cases);
    for (int64_t pass = 1; pass <= part.rounds; ++pass) {
      const size_t all = schedule(part.groups, pass).size();
      planned_ += all;
      done_ += all - pending(part, pass).size();
    }
  }
}

int Sweep::run() {
  announce();
  const bool whole =
      std::all_of(parts_.begin(), parts_.end(), [&](const auto& part) { return run_part(part); });
  if (!whole)
    progress_ << "stopped; the same command goes on with the " << planned_ - done_ << " runs that are left"
              << std::endl;
  else if (done_ < planned_)
    progress_ << "the time set is over: " << planned_ - done_ << " runs are left; the same command goes on"
              << std::endl;
  return held_signal();
}

void Sweep::announce() {
  for (const SweepPart& part : parts_) {
    if (!part.name.empty()) progress_ << part.name << ": ";
    progress_ << part.cases.size() << " cases x " << part.rounds << " rounds"
              << (part.name.empty() ? ", " : "\n");
  }
  progress_ << done_ << " of " << planned_ << " runs done before" << std::endl;
}

// False if a signal interrupted it. What the time budget does not allow is left for another call.
bool Sweep::run_part(const SweepPart& part) {
  const int64_t extra = part.seeds ? 0 : options_.extra_rounds;  // another seed is no repetition
  for (int64_t pass = 1; pass <= part.rounds + extra; ++pass) {
    const std::vector<Slot> slots = pending(part, pass);
    if (slots.empty()) continue;
    if (ran_ > 0 && !fits_budget(seconds_of(part, slots))) return true;
    if (pass > part.rounds) planned_ += slots.size();
    for (const Slot& slot : slots) {
      if (!fits_budget(0)) return true;
      if (held_signal() != 0 || !measure(part, slot)) return false;
    }
  }
  return true;
}

// The runs of a pass that are not recorded yet.
std::vector<Slot> Sweep::pending(const SweepPart& part, int64_t pass) const {
  std::vector<Slot> slots = pass > part.rounds ? slots_of_noisy(part, pass) : schedule(part.groups, pass);
  std::erase_if(slots, [&](const Slot& slot) {
    return store_.has(key(part, part.cases[slot.case_index], slot.round));
  });
  return slots;
}

// One extra round: the cases that spread too far before this pass, each after its reference.
std::vector<Slot> Sweep::slots_of_noisy(const SweepPart& part, int64_t pass) const {
  std::set<std::string> wanted;
  for (const Case& one : part.cases)
    if (relative_spread(ratios(part, one, pass - 1)) > options_.spread)
      wanted.insert({one.name, one.against});
  // a stack that is a reference is itself compared with the baseline
  if (!wanted.empty()) wanted.insert(part.cases.front().name);
  const int64_t round = (pass - 1) * static_cast<int64_t>(part.groups.size()) + 1;
  std::vector<Slot> slots;
  for (size_t i = 0; i < part.cases.size(); ++i)
    if (wanted.contains(part.cases[i].name))
      slots.push_back({i, round, static_cast<int64_t>(slots.size()) + 1});
  return slots;
}

// The step time of the case's reference divided by its own, for each round that has both.
std::vector<double> Sweep::ratios(const SweepPart& part, const Case& one, int64_t passes) const {
  const auto against = std::find_if(part.cases.begin(), part.cases.end(),
                                    [&](const Case& other) { return other.name == one.against; });
  std::vector<double> ratios;
  if (against == part.cases.end()) return ratios;
  const int64_t rounds = passes * static_cast<int64_t>(part.groups.size());
  for (int64_t round = 1; round <= rounds; ++round) {
    const auto reference = store_.step_ms(key(part, *against, round)),
               own = store_.step_ms(key(part, one, round));
    if (reference && own) ratios.push_back(*reference / *own);
  }
  return ratios;
}

// Whether the case still spreads too far after the last extra round, which has this record.
bool Sweep::stays_noisy(const SweepPart& part, const Case& one, int64_t round, const Json& record) const {
  const int64_t pass = (round - 1) / static_cast<int64_t>(part.groups.size()) + 1;
  if (pass <= part.rounds || pass < part.rounds + options_.extra_rounds || one.against.empty()) return false;
  std::vector<double> all = ratios(part, one, pass - 1);
  for (const Case& other : part.cases) {
    if (other.name != one.against) continue;
    const auto reference = store_.step_ms(key(part, other, round)), own = step_ms(record);
    if (reference && own) all.push_back(*reference / *own);
  }
  return relative_spread(all) > options_.spread;
}

RunKey Sweep::key(const SweepPart& part, const Case& one, int64_t round) const {
  return {part.name, one.name,           round + options_.rounds_before,
          one.hash,  provenance_.commit, provenance_.machine.dump()};
}

// The train.seed of a round of a part with seeds: its pass, so that cases of every group have the same seeds.
int64_t Sweep::seed(const SweepPart& part, int64_t round) const {
  return (round - 1) / static_cast<int64_t>(part.groups.size()) + 1;
}

std::vector<std::string> Sweep::command(const SweepPart& part, const Slot& slot) const {
  const Case& one = part.cases[slot.case_index];
  std::vector<std::string> words;
  if (one.link.limited())
    words = {(options_.scripts / "slow_link.sh").string(), std::to_string(one.link.megabits)};
  if (one.ranks > 1)
    words.insert(words.end(), {(options_.scripts / "ranks.sh").string(), std::to_string(one.ranks)});
  words.insert(words.end(), {options_.program.string(), "train", "--config", one.model});
  Overrides settings = one.settings;
  change(settings, "run.name", one.name);
  change(settings, "run.dir", (options_.work / "run").string());
  if (part.seeds) change(settings, "train.seed", std::to_string(seed(part, slot.round)));
  for (const auto& [key, value] : settings) words.push_back(key + "=" + value);
  return words;
}

// The part of a record that is known before the run.
Json Sweep::record_of(const SweepPart& part, const Slot& slot) const {
  const Case& one = part.cases[slot.case_index];
  Json record = {{"schema", kRecordSchema},
                 {"case", one.name},
                 {"techniques", one.techniques},
                 {"against", one.against.empty() ? Json(nullptr) : Json(one.against)}};
  if (!part.name.empty() || one.family != "single") record["family"] = one.family;
  if (!part.name.empty()) record["sweep"] = part.name;
  record.update({{"model", one.model},
                 {"round", slot.round + options_.rounds_before},
                 {"position", slot.position},
                 {"settings", settings_json(one.settings)},
                 {"settings_hash", one.hash},
                 {"command", shell_line(command(part, slot))},
                 {"commit", provenance_.commit},
                 {"dirty", provenance_.dirty},
                 {"machine", provenance_.machine},
                 {"started", utc_now()}});
  if (part.seeds) record["seed"] = seed(part, slot.round);
  if (one.ranks > 1) record.update({{"ranks", one.ranks}, {"link", one.link.name}});
  return record;
}

// Why this machine makes no such link; empty: it does.
std::string Sweep::refusal(const Link& link) {
  if (!link.limited()) return "";
  const auto known = refusals_.find(link.name);
  if (known != refusals_.end()) return known->second;
  const fs::path log = options_.work / "link";
  const Exit exit = run_process(
      {(options_.scripts / "slow_link.sh").string(), std::to_string(link.megabits), "true"}, log, 60);
  const bool made = exit.why == Exit::Why::exited && exit.code == 0;
  return refusals_[link.name] = made ? "" : message_of(exit, log);
}

// False if a signal interrupted it.
bool Sweep::measure(const SweepPart& part, const Slot& slot) {
  const Case& one = part.cases[slot.case_index];
  const fs::path log = options_.work / "log";
  fs::remove_all(options_.work);
  fs::create_directories(options_.work);
  Json record = record_of(part, slot);
  const std::string refused = refusal(one.link);
  if (held_signal() != 0) return false;
  const Exit exit =
      refused.empty() ? run_process(command(part, slot), log, options_.timeout_seconds) : Exit{};
  if (exit.why == Exit::Why::stopped) return false;
  const Outcome outcome = refused.empty() ? read_outcome(exit, options_.work / "run", log, one.ranks)
                                          : Outcome{.status = "skipped", .message = refused};
  record.update({{"wall_seconds", exit.seconds},
                 {"resident_bytes", exit.resident_bytes},
                 {"exit_code", exit.code},
                 {"status", outcome.status},
                 {"message", outcome.message},
                 {"summary", outcome.summary},
                 {"steps", outcome.steps},
                 {"gradient_norms", outcome.gradient_norms},
                 {"memory", outcome.memory}});
  if (one.ranks > 1) record["by_rank"] = outcome.by_rank;
  if (stays_noisy(part, one, slot.round, record)) record["noisy"] = true;
  store_.append(record);
  spent_ += exit.seconds;
  ++ran_;
  ++done_;
  print(record);
  return true;
}

void Sweep::print(const Json& record) {
  const std::string total = std::to_string(planned_);
  progress_ << "[" << std::setw(static_cast<int>(total.size())) << done_ << "/" << total << "] round "
            << record["round"] << ", " << record["case"].get<std::string>() << ": " << outcome_text(record)
            << "; " << clock_text(record["wall_seconds"].get<double>()) << " taken, "
            << clock_text(seconds_left()) << " left" << std::endl;
}

// A run that was never made is assumed to take the average of its part's runs, or else of this sweep's.
double Sweep::seconds_of(const SweepPart& part, const std::vector<Slot>& slots) const {
  double known = 0, others = ran_ > 0 ? spent_ / static_cast<double>(ran_) : 0;
  int64_t count = 0;
  for (const Case& one : part.cases) {
    const std::optional<double> seconds = store_.seconds(one.name, one.hash);
    known += seconds.value_or(0);
    count += seconds ? 1 : 0;
  }
  if (count > 0) others = known / static_cast<double>(count);
  double all = 0;
  for (const Slot& slot : slots) {
    const Case& one = part.cases[slot.case_index];
    all += store_.seconds(one.name, one.hash).value_or(others);
  }
  return all;
}

double Sweep::seconds_left() const {
  double left = 0;
  for (const SweepPart& part : parts_)
    for (int64_t pass = 1; pass <= part.rounds; ++pass) left += seconds_of(part, pending(part, pass));
  return left;
}

bool Sweep::fits_budget(double seconds) const {
  return options_.budget_seconds == 0 || spent_ + seconds <= options_.budget_seconds;
}

}  // namespace moelab::tradeoff
