#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

// The memory ledger: what is allocated now, the peak, and the limit, exact in requested bytes. On the CPU and
// on meta the allocators of this folder feed it. Each block has a header (CPU) or record (meta) with the
// ledger and the kind that it was charged to, so that any thread may free it.
namespace moelab {

// What a block of memory is for. attention, routing, capacity_buffers and activation_experts are parts of
// activations, and parameter_experts is a part of parameters; kind_report() adds parts to their whole, and
// the wholes add up to the total.
enum class Kind : uint8_t {
  other,
  parameters,         // except the experts'
  parameter_experts,  // the experts' part of parameters
  gradients,
  optimizer,
  master,
  activations,  // saved or temporary, except the four below
  attention,
  routing,             // router logits, ids, weights, permutations; the one-hot dispatch tensors
  capacity_buffers,    // rows padded to capacity
  activation_experts,  // the experts' rows and pre-activations
  loss_head,
  kv_cache,
  reference,
  communication,  // received from other ranks, until it is added or put in its place
  scratch,        // inside one operator: oneDNN's raw_allocate, blocks made within at::parallel_for
};
inline constexpr size_t kKinds = 16;
std::string_view kind_name(Kind kind);

// A phase of training; the peak is kept for each.
enum class Phase : uint8_t { init, forward, backward, step };
inline constexpr size_t kPhases = 4;
std::string_view phase_name(Phase phase);

using KindBytes = std::array<int64_t, kKinds>;

// A refused request: what was asked for, and what was allocated at that moment.
struct Refusal {
  int64_t requested = 0;
  int64_t allocated = 0;
  int64_t limit = 0;  // 0: none, the system itself was out of memory
  Phase phase = Phase::init;
  KindBytes by_kind{};
};

// One memory budget. Every member may be called from any thread (flash attention's backward allocates from
// OpenMP's). One lock keeps the counters exact: the kinds add up to the total, and the kinds at the peak to
// the peak.
class Ledger {
 public:
  explicit Ledger(std::string_view name) : name_(name) {}

  // Charges `bytes`. If that would pass the limit, charges nothing, sets refused() and returns false.
  bool charge(size_t bytes, Kind kind);
  void release(size_t bytes, Kind kind);
  // Moves an allocated block's bytes from one kind to another.
  void retag(size_t bytes, Kind from, Kind to);

  std::string_view name() const { return name_; }
  int64_t allocated() const;
  int64_t peak() const;
  // The peak of all kinds but scratch together: what a dry run predicts.
  int64_t tensor_peak() const;
  int64_t phase_peak(Phase phase) const;  // 0: the phase was not entered since reset_peaks()
  int64_t limit() const;                  // 0: none
  void set_limit(int64_t bytes);
  KindBytes by_kind() const;                           // now
  KindBytes by_kind_at_peak() const;                   // at the moment of the peak, scratch included
  KindBytes by_kind_at_phase_peak(Phase phase) const;  // adds up to phase_peak

  // Whether a request was refused. Kept until cleared, so that a library that swallows the error hides
  // nothing.
  bool refused() const;
  int64_t refused_bytes() const;  // of the last refusal; 0: none
  std::optional<Refusal> refusal() const;
  void clear_refused();
  // Records a refusal that the ledger did not decide (the system was out of memory).
  void note_refusal(size_t bytes);
  // Fault injection for tests: one charge is refused after `count` more, whatever the limit; -1: none.
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

// Which memory a block counts in: the device's (the budget), the host's or the drive's.
enum class Home : uint8_t { device, host, nvme };

// The ledgers of the CPU and of the meta allocator, one per home. They live as long as the program.
Ledger& cpu_ledger(Home home = Home::device);
Ledger& meta_ledger(Home home = Home::device);

// Installs the CPU and the meta allocator in LibTorch. Call it first in main, before any tensor exists; for
// dry runs call install_meta_kernels() (kernels/meta/aten_meta.h) too. Refused allocations throw
// c10::OutOfMemoryError. Safe to repeat.
void install_allocators();

// While one lives, new blocks of this thread are charged to `kind`; the innermost scope wins. Threads without
// a scope charge Kind::other.
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

// As KindScope, for the home.
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

// Books the block behind `tensor` to `kind` from now on (for instance a gradient that autograd allocated).
// No-op for storage that this folder's allocators did not make.
void retag(const at::Tensor& tensor, Kind kind);

// The kind that the block behind `tensor` is booked to; KindScope::current() if this folder's allocators did
// not make it.
Kind kind_of(const at::Tensor& tensor);

}  // namespace moelab
