// The one file that includes gloo's headers. Debian's are older than the gloo inside LibTorch: a gloo store
// made here would have their table of virtual functions.
#include "train/parallel/gloo_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "moe/settings/error.h"

namespace moelab {
namespace {

// Gloo writes to its sockets without MSG_NOSIGNAL: a rank that left would end this process without a word.
// With the signal ignored, the write fails and Gloo throws. A handler of the program's own stays.
void ignore_broken_pipes() {
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  if (handler != SIG_DFL && handler != SIG_ERR) std::signal(SIGPIPE, handler);
}

}  // namespace

RankStore open_store(const World& world, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.port);
  options.isServer = world.rank == 0 && !world.agent_serves_store;
  options.numWorkers = static_cast<size_t>(world.size);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    // An agent keeps its store when it restarts the ranks: what an earlier attempt left there must not be
    // read again.
    return c10::make_intrusive<c10d::PrefixStore>(
        "moelab/attempt_" + std::to_string(world.attempt),
        c10::make_intrusive<c10d::TCPStore>(world.address, options));
  } catch (const std::exception& error) {
    throw UserError(std::string(options.isServer ? "cannot serve" : "cannot reach") +
                    " the ranks' store at " + world.address + ":" + std::to_string(world.port) +
                    " (MASTER_ADDR, MASTER_PORT): " +
                    std::string(error.what()).substr(0, std::string(error.what()).find('\n')));
  }
}

RankGroup gloo_group(const RankStore& store, const std::string& name, int64_t rank,
                     const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout) {
  ignore_broken_pipes();
  const auto mine = std::find(ranks.begin(), ranks.end(), rank);
  TORCH_CHECK(mine != ranks.end(), "rank ", rank, " is not in the group ", name);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                       : c10d::ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store),
                                                     static_cast<int>(mine - ranks.begin()),
                                                     static_cast<int>(ranks.size()), options);
}

}  // namespace moelab
