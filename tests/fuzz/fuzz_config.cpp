// Whatever the text, a model's config.json is refused with a UserError or describes a model that can be
// written and reads the same.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "moe/settings/error.h"
#include "train/checkpoint/huggingface/model_config.h"

namespace {

// A folder in memory whose config.json is the text.
std::filesystem::path folder_with(std::string_view text) {
  static const std::filesystem::path folder = "/dev/shm/moelab-fuzz-config-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json", std::ios::binary) << text;
  return folder;
}

std::string written(const moelab::HfConfig& config) {
  return moelab::hf_config_text(config.family, config.model, config.attention, config.max_positions);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string text =
        written(moelab::read_hf_config(folder_with({reinterpret_cast<const char*>(data), size})));
    if (written(moelab::read_hf_config(folder_with(text))) != text) std::abort();
  } catch (const moelab::UserError&) {
  }
  return 0;
}
