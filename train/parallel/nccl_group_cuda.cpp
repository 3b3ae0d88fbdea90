// The one file that includes NCCL's headers.
#include <c10/util/env.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>

#include "train/parallel/nccl_group.h"

namespace moelab {

// LibTorch 2.11's options contain NCCL's, which grow from version to version.
static_assert(NCCL_MAJOR == 2 && NCCL_MINOR == 28,
              "nccl.h has to be that of NCCL 2.28, with which LibTorch was built");

RankGroup nccl_group(const RankStore& store, const std::string& name, int64_t rank,
                     const std::vector<int64_t>& ranks, c10::Device gpu, std::chrono::milliseconds timeout) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank);
  TORCH_CHECK(mine != ranks.end(), "rank ", rank, " is not in the group ", name);
  // When a call takes too long, LibTorch would write down all recent calls, and give that a minute.
  for (const char* const wait : {"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"})
    c10::utils::set_env(wait, "0", /*overwrite=*/false);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  options->group_name = name;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>(name, store), static_cast<int>(mine - ranks.begin()),
      static_cast<int>(ranks.size()), options);
  group->setBoundDeviceId(gpu);
  group->eagerConnectSingleDevice(gpu);
  return group;
}

}  // namespace moelab
