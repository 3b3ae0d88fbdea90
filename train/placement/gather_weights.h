#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/memory/copy_stream.h"
#include "kernels/quantize.h"
#include "moe/parameter.h"
#include "train/config/facts/precision.h"
#include "train/config/settings.h"
#include "train/placement/gather_home.h"

namespace moelab {

// Writes to `value` what products see of `master` in training: rounded to the compute type, and through the
// code where it is one of those that precision.store codes, the blocks' 16-bit weights.
void round_as_stored(const Parameter& parameter, const PrecisionSettings& precision);

// The blocks' weights where those lie outside of the device (placement.parameters), are coded
// (precision.store), or both. A block's come to the device, in the compute type, by gather() and go with
// release(); between, `value` is the same tensor without memory. A master outside of the device comes for
// changes alone, and is left to the optimizer where placement.optimizer is not the device. Weights outside of
// the blocks stay on the device as they are.
//
// What moves between homes is what is held: coded weights travel coded. On CUDA copies have a stream of their
// own, which the current one waits for when the weights are used. The layout is that of FSDP with one
// block a unit (Zhao 2023, arXiv 2304.11277), with another memory in place of other ranks.
class GatheredWeights {
 public:
  // Throws IoError when the folder of nvme takes no file.
  GatheredWeights(const Settings& settings, c10::Device device);
  ~GatheredWeights();
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

  // Whether anything is held otherwise than on the device as it is used; if not, gathering does nothing.
  bool active() const { return away_ != nullptr || code_.has_value(); }

  // Takes the model's next parameter over, in their order: its memory goes home. Throws IoError.
  void adopt(const Parameter& parameter);

  // Makes room for a block's weights and lets another thread read them; for one who is not there, nothing.
  // Coded weights on the device need no reading.
  void fetch(int64_t layer);
  // Returns once they are there. Throws what reading them threw.
  void gather(int64_t layer);
  void release(int64_t layer);
  // Releases all that a step which threw has left on the device.
  void release_all();

  // Runs `step` with the weights of the parameter at `index` and its master on the device, and takes home
  // what it left there. `step` writes to all of `value` where that has an fp32 master.
  void change(size_t index, const std::function<void()>& step);
  // What `weights` makes of the parameter at `index`, its fp32 weights being on the device; a copy on the
  // host's ledger when they go again.
  at::Tensor read(size_t index, const std::function<at::Tensor()>& weights);

  // Bytes that hold the weights of the parameter at `index` between uses, without its master.
  int64_t held_bytes(size_t index) const;

 private:
  struct Weight {
    at::Tensor value;
    at::Tensor master;           // undefined: none beside the value, or not placed here
    bool written_whole = false;  // by each change, from its master
    Kind kind = Kind::parameters;
    bool coded = false;
    std::unique_ptr<AwayBytes> home, master_home;  // null: on the device
    at::Tensor payload;                            // coded: the bytes, while on the device
    int64_t held_bytes = 0;
  };
  struct Block {
    std::vector<size_t> weights;
    bool gathered = false;
    std::optional<std::future<void>> fetching;
  };
  class Visit;
  void take_home(Weight& weight);
  void make_room(Weight& weight);
  at::Tensor make_payload(const Weight& weight) const;

  CopyStream copies_;
  std::optional<BlockCode> code_;
  bool moves_masters_;
  std::unique_ptr<AwayMemory> away_;
  std::vector<Weight> weights_;  // one a parameter; those left alone are empty
  std::vector<Block> blocks_;
};

}  // namespace moelab
