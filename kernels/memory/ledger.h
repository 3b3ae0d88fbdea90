#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

// The memory ledger: what is allocated now, the peak, and the limit, in requested bytes, exactly. On the CPU
// and on meta the allocators of this folder feed it; a header (CPU) or record (meta) with each block
// remembers the ledger and the kind that the block was charged to, so that it is returned to the same ones on
// whatever thread.
namespace moelab {

// What a block of memory is for. The first level adds up to the total; attention, routing, capacity_buffers
// and activation_experts are parts of activations, parameter_experts part of parameters, added up by
// report().
enum class Kind : uint8_t {
  other,
  parameters,         // but for the experts'
  parameter_experts,  // the experts' part of parameters
  gradients,
  optimizer,
  master,
  activations,  // saved or passing, but for the four below
  attention,
  routing,             // router logits, ids, weights, permutations; the one-hot dispatch tensors
  capacity_buffers,    // rows padded to capacity
  activation_experts,  // the experts' rows and pre-activations
  loss_head,
  kv_cache,
  reference,
  scratch,  // inside one operator: oneDNN's raw_allocate, blocks made within at::parallel_for
};
inline constexpr size_t kKinds = 15;
std::string_view kind_name(Kind kind);

// A phase of training; the peak is kept for each.
enum class Phase : uint8_t { init, forward, backward, step };
inline constexpr size_t kPhases = 4;
std::string_view phase_name(Phase phase);

using KindBytes = std::array<int64_t, kKinds>;

// What was asked for, and what was held, at the moment a request was refused.
struct Refusal {
  int64_t requested = 0;
  int64_t allocated = 0;
  int64_t limit = 0;  // 0: none, the system itself had no more
  Phase phase = Phase::init;
  KindBytes by_kind{};
};

// One budget. Every member may be called from any thread (flash attention's backward allocates from
// OpenMP's); one lock keeps the counters exact, so that the kinds add up to the total and those at the peak
// to the peak.
class Ledger {
 public:
  explicit Ledger(std::string_view name) : name_(name) {}

  // Charges `bytes`. False, with nothing charged and refused() set, when that would pass the limit.
  bool charge(size_t bytes, Kind kind);
  void release(size_t bytes, Kind kind);
  // Moves an allocated block's bytes from one kind to another.
  void retag(size_t bytes, Kind from, Kind to);

  std::string_view name() const { return name_; }
  int64_t allocated() const;
  int64_t peak() const;
  // The highest that all kinds but scratch reached together: what a dry run predicts.
  int64_t tensor_peak() const;
  int64_t phase_peak(Phase phase) const;  // 0: the phase was not entered since reset_peaks()
  int64_t limit() const;                  // 0: none
  void set_limit(int64_t bytes);
  KindBytes by_kind() const;                           // now
  KindBytes by_kind_at_peak() const;                   // at the moment of the peak, scratch included
  KindBytes by_kind_at_phase_peak(Phase phase) const;  // adds up to phase_peak

  // Set when a request was refused, and kept until cleared: a library that swallows the error hides nothing.
  bool refused() const;
  int64_t refused_bytes() const;  // of the last refusal; 0: none
  std::optional<Refusal> refusal() const;
  void clear_refused();
  // Records a refusal that the ledger did not decide (the system had no memory left).
  void note_refusal(size_t bytes);
  // Fault injection for tests: after `count` more charges one is refused, whatever the limit; -1: none is.
  void refuse_after(int64_t count);
  int64_t refuse_after() const;  // the charges left until then

  // The phase that peaks are booked to from now on.
  void enter_phase(Phase phase);
  // Peaks restart from what is allocated now; phases other than the current one from 0.
  void reset_peaks();

 private:
  void note_peak();
  void record_refusal(size_t bytes);

  std::string_view name_;
  mutable std::mutex mutex_;  // guards everything below
  int64_t allocated_ = 0, peak_ = 0, tensor_peak_ = 0, limit_ = 0;
  Phase phase_ = Phase::init;
  std::array<int64_t, kPhases> phase_peak_{};
  KindBytes kind_{}, kind_at_peak_{};
  std::array<KindBytes, kPhases> kind_at_phase_peak_{};
  std::optional<Refusal> refusal_;
  int64_t refuse_after_ = -1;
};

// Where a block's bytes count: on the device (the budget), or outside it.
enum class Home : uint8_t { device, host, nvme };

// The ledgers of the CPU allocator and of the meta allocator, one a home. They live as long as the program.
Ledger& cpu_ledger(Home home = Home::device);
Ledger& meta_ledger(Home home = Home::device);

// Installs the CPU and the meta allocator in LibTorch; call it first thing in main, before any tensor exists,
// and install_meta_kernels() (kernels/meta/aten_meta.h) beside it when a dry run is to follow. Refusals throw
// c10::OutOfMemoryError. Safe to repeat.
void install_allocators();

// While one lives on this thread, new blocks are charged to `kind`. The innermost wins. On threads that never
// opened one, blocks are Kind::other.
class KindScope {
 public:
  explicit KindScope(Kind kind);
  ~KindScope();
  KindScope(const KindScope&) = delete;
  KindScope& operator=(const KindScope&) = delete;
  static Kind current();

 private:
  Kind previous_;
};

// The same for the home.
class HomeScope {
 public:
  explicit HomeScope(Home home);
  ~HomeScope();
  HomeScope(const HomeScope&) = delete;
  HomeScope& operator=(const HomeScope&) = delete;
  static Home current();

 private:
  Home previous_;
};

}  // namespace moelab

namespace at {
class Tensor;
}

namespace moelab {

// Books the block behind `tensor` to `kind` from now on (a gradient that autograd allocated, say). Nothing
// happens to tensors whose storage this folder's allocators did not make.
void retag(const at::Tensor& tensor, Kind kind);

// What that block is booked to; KindScope::current() where this folder's allocators did not make it.
Kind kind_of(const at::Tensor& tensor);

}  // namespace moelab
