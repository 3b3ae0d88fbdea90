#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/formats/quantize.h"
#include "kernels/memory/copy_stream.h"
#include "moe/communicator.h"
#include "moe/parameter.h"
#include "moe/runner.h"
#include "train/io/wait_clock.h"
#include "train/parallel/parts.h"
#include "train/placement/offload_buffer.h"
#include "train/settings/facts/precision.h"
#include "train/settings/settings.h"

namespace moelab {

// Writes to `value` what products see of `master` in training: the master rounded to the compute type and,
// for the blocks' 16-bit weights under a coded precision.store, coded and decoded.
void round_as_stored(const Parameter& parameter, const PrecisionSettings& precision);

// The blocks' weights, if they are held outside of the device (placement.parameters), coded
// (precision.store), or both. gather() brings a block's weights to the device in the compute type, and
// release() removes them; in between, `value` is the same tensor without memory. A master outside of the
// device is brought only for changes, and is the optimizer's business if placement.optimizer is not the
// device. Weights outside of the blocks stay on the device unchanged.
//
// Ranks may divide the weights (ZeRO-3): then each holds its part of each weight, and gather() brings the
// other parts from the other ranks. Embedding and head are divided too, and gathered as if they were two more
// blocks; the final norm is not. Coded weights are divided without regard to the optimizer's parts. Weights
// of which the model has a part (this rank's experts, or its slice) are divided by the ranks that have the
// same part.
//
// Weights move between homes and ranks in the form in which they are held: coded weights stay coded. On CUDA
// copies have their own stream, and the current stream waits for it when the weights are used. The layout is
// FSDP's with one block per unit (Zhao 2023, arXiv 2304.11277).
class GatheredWeights {
 public:
  // `ranks`: those that divide the weights; `expert_ranks`: those that divide the experts, where
  // data-parallel ranks have different ones. Throws IoError when no file can be made in the nvme folder.
  GatheredWeights(const Settings& settings, c10::Device device, Communicator& ranks = one_rank(),
                  Communicator& expert_ranks = one_rank());
  ~GatheredWeights();
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

  // Whether any weights are held off the device, coded or divided; if not, gathering does nothing.
  bool active() const { return offload_pool_ != nullptr || code_.has_value(); }

  // Takes over the model's next parameter, in the model's order, and moves its memory to its home. Throws
  // IoError.
  void adopt(const Parameter& parameter);
  // As above; but the optimizer updates only `stepped`, which is this rank's part among `parts`.
  void adopt(const Parameter& parameter, const Parameter& stepped, const Parts& parts);

  // Where embedding and head are, among the layers.
  int64_t layer_of(OuterWeight weight) const;

  // Allocates memory for a block's weights and starts reading them on another thread; no-op for a layer
  // below 0. Weights on the device need no reading.
  void fetch(int64_t layer);
  // Returns when the weights are on the device. Throws what reading them threw.
  void gather(int64_t layer);
  void release(int64_t layer);
  // Whether a block that was gathered for forward stays until its backward pass has ended.
  bool keeps_gathered() const { return keeps_gathered_; }
  // Releases everything that a step left on the device when it threw.
  void release_all();

  // The value of the parameter at `index`, on the device, is on its way from other ranks, after those that
  // were expected before it.
  void expect(size_t index, std::unique_ptr<Transfer> coming) {
    coming_.push_back({weights_.at(index).first_use, std::move(coming)});
  }
  // Returns when all values have come that a forward pass reads before the block after `layer`. Throws
  // c10::Error when another rank is gone.
  void arrive(int64_t layer);
  void all_arrive() { arrive(std::numeric_limits<int64_t>::max()); }
  // Expects no values any more: those under way may have come, or not.
  void expect_none() { coming_.clear(); }

  // Runs `step` with the value and master of the parameter at `index` on the device, and writes the results
  // back to their home. If there is an fp32 master, `step` must write all of `value`.
  void change(size_t index, const std::function<void()>& step);
  // Returns weights(), called with the fp32 weights of the parameter at `index` on the device. If the weights
  // leave the device again, returns a copy on the host's ledger.
  at::Tensor read(size_t index, const std::function<at::Tensor()>& weights);

  // Whether this rank holds of the parameter at `index` what its optimizer steps, and nothing else.
  bool holds_part(size_t index) const { return weights_.at(index).divided && !weights_[index].coded; }
  // Bytes used between uses by the weights of the parameter at `index`, without its master.
  int64_t held_bytes(size_t index) const;
  // How long the calling threads have stood still until weights had come from their home or gone there. On
  // CUDA only a drive makes them: copies are queued, and the device waits for those.
  double waited_seconds() const { return waits_.seconds(); }

 private:
  struct Weight {
    at::Tensor value;
    at::Tensor master;           // undefined: there is none, or it is not placed here
    bool written_whole = false;  // each change writes all of value, from the master
    Kind kind = Kind::parameters;
    int64_t first_use = 0;  // the layer in which a forward pass first reads it; the embedding: -1
    bool coded = false;
    bool divided = false;                              // over ranks
    std::unique_ptr<OffloadBuffer> home, master_home;  // null: on the device, as they are
    at::Tensor payload;                                // coded: the bytes, while on the device
    int64_t bytes = 0;                                 // in the form in which the weight is held
    int64_t held_bytes = 0;                            // by this rank
  };
  struct Coming {
    int64_t first_use;
    std::unique_ptr<Transfer> transfer;
  };
  using Transfers = std::vector<std::unique_ptr<Transfer>>;
  struct Block {
    std::vector<size_t> weights;
    bool gathered = false;
    std::optional<std::future<Transfers>> fetching;
  };
  class Visit;
  std::optional<int64_t> layer_of(const std::string& name) const;
  void adopt(const Parameter& parameter, const at::Tensor& master, const Parts* parts);
  Communicator& ranks_of(const Parameter& parameter) const {
    return parameter.exchanged ? expert_ranks_ : ranks_;
  }
  std::unique_ptr<OffloadBuffer> make_home(Weight& weight, Communicator& ranks, const Parts* parts);
  Transfers finish_fetching(Block& block);
  void take_home(Weight& weight);
  void make_room(Weight& weight);
  at::Tensor make_payload(const Weight& weight) const;

  CopyStream copies_;
  std::optional<BlockCode> code_;
  Home home_;
  bool moves_masters_, keeps_gathered_;
  Communicator &ranks_, &expert_ranks_;
  std::unique_ptr<OffloadPool> offload_pool_;  // null: weights stay on the device, as they are
  std::vector<Weight> weights_;                // one per parameter; empty for weights left alone
  std::vector<Block> blocks_;                  // then head and embedding
  std::deque<Coming> coming_;
  bool tied_;  // the embedding is the head, too
  WaitClock waits_;
};

}  // namespace moelab
