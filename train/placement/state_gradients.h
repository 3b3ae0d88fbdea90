#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "train/config/settings.h"
#include "train/optim/host_copy.h"
#include "train/optim/optimizer.h"
#include "train/optim/state_file.h"

namespace moelab {

// The file that placement.gradients or placement.optimizer=nvme share; null when neither is. Throws IoError
// when the folder takes no file.
std::shared_ptr<StateFile> make_state_file(const PlacementSettings& settings, c10::Device device);

// The gradients of a step, from the moment that autograd has accumulated each until the optimizer has used
// them, where placement.gradients says: on the device (Kind::gradients), in host memory, or in the file. Over
// several micro-batches they are summed there, 16-bit ones in fp32. All homes have the same bits.
class GradientStore {
 public:
  // Keeps references: `optimizer` has all its parameters by the first take(). On CUDA a step on the host
  // wants its gradients there, so they leave the device then, too.
  GradientStore(const PlacementSettings& settings, c10::Device device, Optimizer& optimizer,
                std::shared_ptr<StateFile> file);

  // How many micro-batches a step has, from the next step on.
  void accumulate(int64_t micro_batches) { micro_batches_ = micro_batches; }

  // Takes what autograd has accumulated for the parameter at `index`, once a micro-batch. Throws IoError.
  void take(size_t index);
  // The sum of squares of all together, once all are taken; the same bits in every home, but for the order of
  // the sums on a CUDA device and on its host. 0 on meta.
  double sum_of_squares();
  // Forgets all gradients; memory and file stay for the next step's.
  void drop();

 private:
  struct Stored {
    at::Tensor memory;     // host: of the sum
    int64_t offset = 0;    // nvme: of the sum in the file, …
    int64_t bytes = 0;     // … where there is so much room for it
    bool present = false;  // this step's
    double norm = 0;       // nvme: squared
  };
  c10::ScalarType sum_type(const Parameter& parameter) const;
  void keep(Parameter& parameter);
  void to_host(Parameter& parameter, Stored& stored);
  at::Tensor on_host(const at::Tensor& gradient);  // a copy from CUDA, else itself
  void to_file(size_t index, Stored& stored);

  Home home_;
  c10::Device device_;
  Optimizer& optimizer_;
  std::shared_ptr<StateFile> file_;
  HostCopy copies_;
  int64_t micro_batches_ = 1;
  std::vector<Stored> stored_;  // one a parameter
};

}  // namespace moelab
