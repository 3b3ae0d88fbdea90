#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/update/exact_sum.h"
#include "train/optim/host_copy.h"
#include "train/optim/optimizer.h"
#include "train/optim/state_file.h"
#include "train/parallel/data_ranks.h"
#include "train/settings/settings.h"

namespace moelab {

// The file shared by placement.gradients=nvme and placement.optimizer=nvme; null if neither is set. Throws
// IoError when no file can be made in the folder.
std::shared_ptr<StateFile> make_state_file(const PlacementSettings& settings, c10::Device device);

// Holds a step's gradients, from autograd's accumulation until the optimizer has used them, in the home of
// placement.gradients: on the device (Kind::gradients), in host memory, or in the file. Over several
// micro-batches they are summed there, 16-bit ones in fp32 or with GradientSums::bf16 in bf16. All homes give
// bitwise the same results.
//
// Of several ranks each holds the sums over all ranks of what its optimizer steps: everything, or its part of
// each gradient (ZeRO-2). At every micro-batch it sends each of the others what that one holds, and adds what
// it receives in rank order. Gradients travel while backward computes the next ones. A rank of N sends
// (N - 1) times the bytes of its gradients a micro-batch, or (N - 1) / N of them. With Reduction::step it
// adds its own micro-batches first, on the device, in the type of the sums, and sends their sums once a step.
// The gradient of experts that lie on this rank comes in as many versions as ranks send it rows, and is added
// over the ranks that have the same experts.
class GradientStore {
 public:
  // Keeps references; `optimizer` must have all its parameters at the first take(). On CUDA, if the optimizer
  // steps on the host, gradients go to the host even with placement.gradients=device.
  GradientStore(const PlacementSettings& settings, c10::Device device, Optimizer& optimizer,
                std::shared_ptr<StateFile> file, DataRanks ranks = {},
                Reduction reduction = Reduction::micro_batch, GradientSums sums = GradientSums::fp32);

  // Sets the number of micro-batches per step, those of all ranks together, from the next step on.
  void accumulate(int64_t micro_batches) { micro_batches_ = micro_batches; }

  // Takes the gradient that autograd has accumulated for the parameter at `index`; call once per micro-batch.
  // Throws IoError. Between ranks, a later call adds it.
  void take(size_t index);
  // As above for experts: takes what the rows of rank `sender`, of those with other experts, give it. One
  // call a sender, in rank order, instead of the one above.
  void take(size_t index, int64_t sender, const at::Tensor& gradient);
  // Adds what is still on its way between the ranks.
  void finish_exchanges();
  // The sum of squares of all gradients, once all are taken. Bitwise the same in every home and however ranks
  // divide them, except that a CUDA device and its host sum in different orders. 0 on meta.
  double sum_of_squares();
  // The same in two parts, for a host that has more to read: (n) fp64 on the CUDA device, undefined where
  // gradients are elsewhere; and their sum, once the host has them.
  at::Tensor squares_there();
  double sum_of(const at::Tensor& squares) const;
  // The sum of squares of each parameter's gradient.
  std::vector<double> squares_of_each();
  // As above, of the gradient of the parameter at `index` alone.
  double squares_of(size_t index);
  // Once all are taken: adds to the gradient of the parameter at `index` what `other` of these ranks has of
  // the same weight, which does likewise. Gradients on the device or the host.
  void add_from(int64_t other, Communicator& ranks, size_t index);
  // How long calls have stood still for copies to the host; the file counts its own waits.
  double waited_seconds() const { return copies_.waited_seconds(); }
  // Drops all gradients, or one; keeps memory and file space for the next step.
  void drop();
  void drop(size_t index);

 private:
  struct Stored {
    at::Tensor memory;     // host: the sum
    int64_t offset = 0;    // nvme: the sum's offset in the file …
    int64_t bytes = 0;     // … and its reserved bytes
    bool present = false;  // holds a gradient of this step
    at::Tensor own;        // Reduction::step: the sum of gradients that are not sent yet …
    int64_t taken = 0;     // … of so many micro-batches, or so many senders in them
    at::Tensor versions;   // of experts: the senders' gradients so far, in the order in which they are sent
    ExactSum squares;      // nvme
  };
  // A parameter's gradient on its way between the ranks. R ranks, or versions of all ranks, N elements that
  // this one holds.
  struct Exchange {
    size_t index;
    at::Tensor sent;
    at::Tensor versions_RN;  // each rank's gradient of these elements
    std::unique_ptr<Transfer> transfer = {};
  };
  c10::ScalarType sum_type(const Parameter& parameter) const;
  int64_t micro_batches_here() const { return micro_batches_ / ranks_.size(); }
  bool sums_first() const { return reduction_ == Reduction::step && micro_batches_here() > 1; }
  bool gradients_differ() const;
  bool counts(size_t index) const;
  bool add_own(size_t index, at::Tensor& gradient);
  void add_own_version(size_t index, const at::Tensor& gradient);
  void put_version(size_t index, int64_t sender, const at::Tensor& gradient);
  void prepare();
  void start_exchange(size_t index, const at::Tensor& gradient, int64_t versions = 1);
  void finish_exchange();
  ExactSum own_squares(size_t index) const;
  // Adds R gradients, each of the N elements that are held of a parameter, in their order.
  void add(size_t index, const at::Tensor& rows_RN);
  void keep(Parameter& parameter, const at::Tensor& rows_RN);
  void to_host(Parameter& parameter, Stored& stored, const at::Tensor& rows_RN);
  void to_file(size_t index, Stored& stored, const at::Tensor& rows_RN);
  at::Tensor on_host(const at::Tensor& gradient);  // a copy of a CUDA tensor, else the tensor itself

  Home home_;
  c10::Device device_;
  Optimizer& optimizer_;
  std::shared_ptr<StateFile> file_;
  DataRanks ranks_;
  Reduction reduction_;
  GradientSums sums_;
  HostCopy copies_;
  int64_t micro_batches_ = 1;
  std::vector<Stored> stored_;  // one per parameter
  int64_t largest_ = 0;         // bytes of the largest gradient that is sent
  std::deque<Exchange> exchanges_;
};

}  // namespace moelab
