#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>

namespace moelab {

// This process among those that train together, as torchrun, scripts/ranks.sh or anyone who sets the same
// variables says: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
struct World {
  int64_t rank = 0;  // of size
  int64_t size = 1;
  int64_t local_rank = 0;  // of local_size, on this machine
  int64_t local_size = 1;
  int64_t attempt = 0;                // how often torchrun has restarted the ranks
  std::string address = "127.0.0.1";  // of the store where ranks meet …
  int64_t port = 29500;
  bool agent_serves_store = false;  // … which torchrun's agent serves; else rank 0

  bool alone() const { return size == 1; }
};

// From RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RESTART_COUNT, MASTER_ADDR, MASTER_PORT
// and TORCHELASTIC_USE_AGENT_STORE, read by `variable` (null: not set). Without WORLD_SIZE: one rank. Throws
// UserError for a value that is not a number, a rank outside the world, and a world of several without RANK.
World world_from(const std::function<const char*(const char* name)>& variable);

// The GPU with this rank's number on its machine, of the `gpus` there. Throws UserError unless each of the
// machine's ranks has one of its own: NCCL connects no two ranks on one.
c10::Device gpu_of(const World& world, int64_t gpus);

}  // namespace moelab
