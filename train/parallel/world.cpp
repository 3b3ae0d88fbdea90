#include "train/parallel/world.h"

#include <charconv>
#include <string_view>

#include "moe/settings/error.h"

namespace moelab {
namespace {

using Variables = std::function<const char*(const char*)>;

int64_t number_of(const Variables& variable, const char* name, int64_t otherwise) {
  const char* const value = variable(name);
  if (!value) return otherwise;
  const std::string_view text = value;
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  if (error != std::errc() || end != text.end() || number < 0) {
    throw UserError(std::string(name) + "=" + value + ": a number of at least 0 is expected");
  }
  return number;
}

void check_rank(const char* name, int64_t rank, int64_t size) {
  if (rank < size) return;
  throw UserError(std::string(name) + "=" + std::to_string(rank) + ": there are " + std::to_string(size) +
                  " ranks, numbered from 0");
}

}  // namespace

World world_from(const Variables& variable) {
  World world;
  if (!variable("WORLD_SIZE")) return world;
  world.size = number_of(variable, "WORLD_SIZE", 1);
  if (world.size > 1 && !variable("RANK")) {
    throw UserError("WORLD_SIZE=" + std::to_string(world.size) +
                    " without RANK: start the ranks with torchrun or scripts/ranks.sh");
  }
  world.rank = number_of(variable, "RANK", 0);
  check_rank("RANK", world.rank, world.size);
  world.local_size = number_of(variable, "LOCAL_WORLD_SIZE", world.size);
  world.local_rank = number_of(variable, "LOCAL_RANK", world.rank);
  check_rank("LOCAL_RANK", world.local_rank, world.local_size);
  world.attempt = number_of(variable, "TORCHELASTIC_RESTART_COUNT", 0);
  if (const char* const address = variable("MASTER_ADDR")) world.address = address;
  world.port = number_of(variable, "MASTER_PORT", world.port);
  const char* const agent = variable("TORCHELASTIC_USE_AGENT_STORE");
  world.agent_serves_store = agent && std::string_view(agent) == "True";
  return world;
}

c10::Device gpu_of(const World& world, int64_t gpus) {
  if (world.local_size > gpus) {
    throw UserError("run.device=cuda: " + std::to_string(world.local_size) +
                    " ranks are on this machine, and " +
                    (gpus == 1 ? "1 GPU is" : std::to_string(gpus) + " GPUs are") +
                    " visible; each needs one of its own: start " + std::to_string(gpus) +
                    ", or let each see all GPUs (CUDA_VISIBLE_DEVICES)");
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank)};
}

}  // namespace moelab
