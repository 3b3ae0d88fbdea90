#include "train/settings/facts/ranks.h"

namespace moelab {

std::vector<Technique> rank_rows() {
  return {
      {"data_parallel",
       "data-parallel ranks, each with the whole state",
       {{"parallel.data", "2"}},
       "Every rank sends all gradients to every other at each micro-batch.",
       "16 P a rank, and the N ranks' versions of two gradients",
       {"vibee.zero_0"}},
      {"zero_1",
       "ZeRO-1: ranks divide optimizer state and masters",
       {{"parallel.data", "2"}, {"parallel.zero", "1"}},
       "Gradients are sent to the ranks that own them, and updated weights to all.",
       "4 P + 12 P / N for 16 P: gradients are divided too, because each is added where it is owned",
       {"vibee.zero_1", "ava.zero_1"}},
      {"zero_2",
       "ZeRO-2: ranks divide gradients as well",
       {{"parallel.data", "2"}, {"parallel.zero", "2"}},
       "As ZeRO-1, which divides gradients here too.",
       "4 P + 12 P / N for 16 P",
       {"vibee.zero_2", "ava.zero_2"}},
      {"zero_3",
       "ZeRO-3: ranks divide the weights as well",
       {{"parallel.data", "2"}, {"parallel.zero", "3"}},
       "Gradients are sent to their owners; a block's weights are gathered for forward and again for "
       "backward.",
       "16 P / N and two blocks' weights for 16 P",
       {"vibee.zero_3", "ava.zero_3"}},
      {"zero_3_kept",
       "ZeRO-3 that keeps a block's weights from forward to backward",
       {{"parallel.data", "2"}, {"parallel.zero", "3"}, {"placement.reshard_after_forward", "false"}},
       "As ZeRO-3, with the blocks' weights gathered once for both passes.",
       "16 P / N and all blocks' weights for 16 P",
       {"verl.reshard_after_forward"}},
  };
}

}  // namespace moelab
