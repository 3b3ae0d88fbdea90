#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace moelab {

// A communication under way. Its tensors must live, unchanged, until wait() has returned.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Returns once the result can be read; on CUDA, by kernels launched afterwards on the current stream.
  // Throws c10::Error when another rank is gone or too late; on CUDA the host does not wait, and hears it
  // from the next communication of tensors on the host.
  virtual void wait() = 0;
};

// The ranks along one axis (data, expert, tensor, pipeline), for one use (weights, gradients, activations,
// control). All its ranks make the same calls in the same order. Tensors are contiguous, of one dtype, and on
// the device of the run; they are read and written as flat rows of bytes or numbers, whatever their shapes.
// `counts` has one number of elements a rank; numbers differ and may be 0.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int64_t rank() const = 0;  // of size()
  virtual int64_t size() const = 0;

  // whole = the parts of rank 0, 1, … one behind another, on every rank; this rank's has counts[rank()]
  // elements. `part` may be its own range of `whole`.
  virtual std::unique_ptr<Transfer> gather(const at::Tensor& part, const at::Tensor& whole,
                                           std::span<const int64_t> counts) = 0;
  // The ranges of every rank's `whole` that belong to this rank, added in the order of ranks, rank 0's first:
  // sum = ((sum + w_0) + w_1) + … with each `w` converted to the dtype of `sum` (counts[rank()]) before it is
  // added.
  virtual std::unique_ptr<Transfer> reduce(const at::Tensor& whole, const at::Tensor& sum,
                                           std::span<const int64_t> counts) = 0;
  // Sends to[r] elements to each rank r, in rank order in `sent`; `received` takes from[r] of each rank r,
  // likewise.
  virtual std::unique_ptr<Transfer> exchange(const at::Tensor& sent, std::span<const int64_t> to,
                                             const at::Tensor& received, std::span<const int64_t> from) = 0;
  // On CUDA one message passes after another: two ranks that both send before they receive use exchange().
  virtual std::unique_ptr<Transfer> send(const at::Tensor& tensor, int64_t to) = 0;
  virtual std::unique_ptr<Transfer> receive(const at::Tensor& tensor, int64_t from) = 0;
  // Every rank's words, (size(), words.size()) in rank order: what all of them then decide alike.
  virtual std::vector<int64_t> agree(std::span<const int64_t> words) = 0;

  // Sent to other ranks so far.
  virtual int64_t sent_bytes() const = 0;
};

// The only rank of its axis: what it would send, it copies.
Communicator& one_rank();

}  // namespace moelab
