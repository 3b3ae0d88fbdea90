#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "tests/temporary_folder.h"
#include "train/program/commands/commands.h"
#include "train/settings/load.h"

// Whole runs of moelab train inside this process; tests change the budget between steps.
namespace moelab::test {

// Random token ids below 256.
inline void write_shards(const TemporaryFolder& folder) {
  std::mt19937 random(1);
  for (const auto& [name, count] : {std::pair{"train.bin", 40'000}, {"val.bin", 4'000}}) {
    std::vector<uint16_t> ids(count);
    for (uint16_t& id : ids) id = static_cast<uint16_t>(random() % 256);
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(2 * ids.size()));
  }
}

struct BudgetRun {
  int code = 0;
  std::string out, error;
  std::vector<nlohmann::json> lines;  // of metrics.jsonl
  nlohmann::json summary, memory;

  std::vector<std::string> dashboard() const {
    std::vector<std::string> found;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);)
      if (line.starts_with("[Step ")) found.push_back(line);
    return found;
  }
};

class BudgetRunTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_allocators(); }
  void SetUp() override {
    cpu_ledger().clear_refused();
    write_shards(data_);
  }
  void TearDown() override {
    cpu_ledger().refuse_after(-1);
    set_limit(c10::kCPU, 0);
  }

  // If a setting is repeated, the last value counts.
  Settings settings_of(const std::string& name, const std::vector<std::string>& settings) {
    std::vector<std::string> all = {"model.vocab=256",   "model.d_model=64",
                                    "model.heads=2",     "model.layers=3",
                                    "model.d_expert=96", "train.sequence=64",
                                    "run.threads=1",     "run.log_every=0",
                                    "eval.batches=2",    "data.path=" + data_.string(),
                                    "run.device=cpu",    "run.dir=" + (runs_ / name).string()};
    all.insert(all.end(), settings.begin(), settings.end());
    return load_settings({.config = "moe-pico", .overrides = all});
  }

  // `before_step`: as in TrainOptions.
  BudgetRun run(const std::string& name, const std::vector<std::string>& settings,
                const std::function<void(int64_t)>& before_step = {}, const std::string& resume = "") {
    const Settings loaded = settings_of(name, settings);
    BudgetRun result;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    try {
      result.code = train_command(loaded, {resume, before_step}, "test");
    } catch (const std::exception& error) {
      result.code = -1;
      result.error = error.what();
    }
    result.out = testing::internal::GetCapturedStdout();
    result.error += testing::internal::GetCapturedStderr();
    std::ifstream metrics(runs_ / name / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) result.lines.push_back(nlohmann::json::parse(line));
    result.summary = nlohmann::json::parse(std::ifstream(runs_ / name / "summary.json"), nullptr, false);
    result.memory = nlohmann::json::parse(std::ifstream(runs_ / name / "memory.json"), nullptr, false);
    return result;
  }

  // The hash of weights and optimizer state in the checkpoint after `step`.
  std::string state_hash(const std::string& name, int64_t step) {
    const auto manifest = nlohmann::json::parse(
        std::ifstream(runs_ / name / "checkpoints" / ("step-" + std::to_string(step)) / "manifest.json"),
        nullptr, false);
    if (manifest.is_discarded()) return "none of step " + std::to_string(step);
    const auto& files = manifest["body"]["files"];
    return files["model.safetensors"]["xxh3_128"].get<std::string>() +
           files["optimizer.safetensors"]["xxh3_128"].get<std::string>();
  }
  bool has_checkpoint(const std::string& name, int64_t step) {
    return std::filesystem::exists(runs_ / name / "checkpoints" / ("step-" + std::to_string(step)));
  }

  TemporaryFolder data_, runs_;
};

}  // namespace moelab::test
