#include "bench/tradeoff/outcome.h"

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

namespace moelab::tradeoff {
namespace fs = std::filesystem;
namespace {

// Null if the text is not a JSON object.
Json parse_object(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? json : Json(nullptr);
}

void read_steps(const fs::path& metrics, Outcome& outcome) {
  std::istringstream lines(file_text(metrics));
  for (std::string line; std::getline(lines, line);) {
    const Json step = parse_object(line);
    if (step.is_null()) break;  // torn: the process was killed while it wrote
    Json row = Json::array();
    for (const char* key : {"step", "tokens", "loss", "step_ms"})
      row.push_back(step.value(key, Json(nullptr)));
    outcome.steps.push_back(std::move(row));
    outcome.gradient_norms.push_back(step.value("grad_norm", Json(nullptr)));
  }
}

// Rank 0 leaves its files in the run's folder, rank R in ranks/R of it.
Json read_ranks(const fs::path& run, int64_t ranks) {
  Json all = Json::array();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const fs::path folder = rank == 0 ? run : run / "ranks" / std::to_string(rank);
    const Json summary = parse_object(file_text(folder / "summary.json"));
    if (summary.is_null()) return Json::array();
    Json one = Json::object();
    for (const char* key : {"peak_bytes", "estimated_peak_bytes", "state_bytes"})
      one[key] = summary.value(key, Json(nullptr));
    all.push_back(std::move(one));
  }
  return all;
}

// The last line that begins as errors do, which advice may follow; without such a line, the last of all.
std::string last_message(const std::string& output) {
  const std::string text = "\n" + output.substr(0, output.find_last_not_of(" \n\r\t") + 1);
  if (text.size() == 1) return "no output";
  const size_t error = text.rfind("\nmoelab: ");
  const size_t begin = (error == text.npos ? text.rfind('\n') : error) + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string status_of(const Exit& exit) {
  constexpr int kBudgetNotMet = 3;
  if (exit.why == Exit::Why::timeout) return "timeout";
  if (exit.why == Exit::Why::signalled) return "crash";
  if (exit.code == 0) return "ok";
  return exit.code == kBudgetNotMet ? "oom" : "error";
}

}  // namespace

std::string file_text(const fs::path& path) {
  std::ostringstream text;
  std::ifstream in(path, std::ios::binary);
  if (in) text << in.rdbuf();
  return text.str();
}

std::string message_of(const Exit& exit, const fs::path& log) {
  if (exit.why == Exit::Why::timeout)
    return "killed after " + std::to_string(static_cast<int64_t>(exit.seconds)) + " s";
  if (exit.why != Exit::Why::signalled) return last_message(file_text(log));
  const int signal = exit.code - 128;
  const std::string hint = signal == SIGKILL ? " (as the system does when it has no memory left)" : "";
  return std::string("ended by ") + strsignal(signal) + hint + "; " + last_message(file_text(log));
}

Outcome read_outcome(const Exit& exit, const fs::path& run, const fs::path& log, int64_t ranks) {
  Outcome outcome;
  outcome.status = status_of(exit);
  outcome.summary = parse_object(file_text(run / "summary.json"));
  read_steps(run / "metrics.jsonl", outcome);
  outcome.by_rank = read_ranks(run, ranks);
  const Json memory = parse_object(file_text(run / "memory.json"));
  outcome.memory =
      memory.is_null() ? Json::object() : memory.value("last_step_bytes_by_phase", Json::object());
  if (outcome.status == "ok" && outcome.summary.is_null()) {
    outcome.status = "error";
    outcome.message = "exit code 0, but no summary.json";
  } else if (outcome.status != "ok") {
    outcome.message = message_of(exit, log);
  }
  return outcome;
}

}  // namespace moelab::tradeoff
