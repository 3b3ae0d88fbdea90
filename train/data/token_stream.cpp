#include "train/data/token_stream.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "kernels/memory/ledger.h"

namespace moelab {
namespace {

std::vector<double> weights_of(const std::vector<Source>& sources) {
  std::vector<double> weights;
  for (const Source& source : sources) weights.push_back(source.weight);
  return weights;
}

std::vector<int64_t> windows_of(const std::vector<Source>& sources, int64_t sequence) {
  TORCH_CHECK(sequence >= 1, "a sequence has at least one token, not ", sequence);
  std::vector<int64_t> windows;
  for (const Source& source : sources) windows.push_back(source.tokens.windows(sequence));
  return windows;
}

Batch allocate_windows(int64_t rows, int64_t sequence, bool pinned = false) {
  const HomeScope outside_the_budget(Home::host);
  const auto ids = at::TensorOptions().dtype(at::kLong).pinned_memory(pinned);
  return {at::empty({rows, sequence}, ids), at::empty({rows, sequence}, ids)};
}

bool never() { return false; }

// False: `stop`, asked before each row, was true.
bool gather(const std::vector<Source>& sources, const std::vector<Sample>& samples, const Batch& batch,
            const std::function<bool()>& stop = never) {
  const int64_t sequence = batch.tokens.size(1);
  auto* tokens = batch.tokens.mutable_data_ptr<int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<int64_t>();
  const auto row_bytes = static_cast<size_t>(sequence) * sizeof(int64_t);
  std::vector<int64_t> window(static_cast<size_t>(sequence) + 1);
  for (const Sample& sample : samples) {
    if (stop()) return false;
    sources[sample.source].tokens.copy(sample.window * sequence, window);
    std::memcpy(tokens, window.data(), row_bytes);
    std::memcpy(targets, window.data() + 1, row_bytes);
    tokens += sequence;
    targets += sequence;
  }
  return true;
}

class WindowRows : public RowSource {
 public:
  WindowRows(std::vector<Source> sources, int64_t sequence, int64_t seed, bool pinned)
      : sources_(std::move(sources)),
        order_(weights_of(sources_), windows_of(sources_, sequence), seed),
        sequence_(sequence),
        pinned_(pinned) {}

  Batch allocate(int64_t count) const override { return allocate_windows(count, sequence_, pinned_); }
  bool fill(int64_t first, Batch& batch, const std::function<bool()>& stop) const override {
    const int64_t count = batch.tokens.size(0);
    std::vector<Sample> samples;
    samples.reserve(static_cast<size_t>(count));
    for (int64_t n = first; n < first + count; ++n) samples.push_back(order_.at(n));
    return gather(sources_, samples, batch, stop);
  }
  int64_t filled(int64_t, int64_t count) const override { return count * sequence_; }

 private:
  std::vector<Source> sources_;
  SampleOrder order_;
  int64_t sequence_;
  bool pinned_;
};

// The largest n at which no source has had more turns than it has windows.
int64_t turns_without_repeat(const Mixture& mixture, const std::vector<int64_t>& windows) {
  int64_t fits = 0, fails = 1;
  for (const int64_t count : windows) fails += count;
  while (fails - fits > 1) {
    const int64_t middle = fits + (fails - fits) / 2;
    const std::vector<int64_t> counts = mixture.counts(middle);
    const bool good = std::ranges::equal(counts, windows, std::ranges::less_equal());
    (good ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace

struct TokenStream::Slot {
  Request request;
  Batch batch;
  bool taken = false, done = false;
  std::exception_ptr error{};
};

std::unique_ptr<const RowSource> window_rows(std::vector<Source> sources, int64_t sequence, int64_t seed,
                                             bool pinned) {
  return std::make_unique<WindowRows>(std::move(sources), sequence, seed, pinned);
}

TokenStream::TokenStream(std::unique_ptr<const RowSource> rows, int64_t rows_per_step, ReadAhead ahead,
                         std::function<bool()> stop)
    : rows_(std::move(rows)),
      rows_per_step_(rows_per_step),
      prefetch_(ahead.workers * ahead.batches),
      asked_to_stop_(stop ? std::move(stop) : never) {
  TORCH_CHECK(rows_per_step >= 1 && ahead.batches >= 0 && (ahead.workers >= 1 || ahead.batches == 0),
              "TokenStream of ", rows_per_step, " rows, ", ahead.workers, " workers, ", ahead.batches,
              " batches");
  if (prefetch_ == 0) return;
  for (int64_t i = 0; i < ahead.workers; ++i) workers_.emplace_back([this] { work(); });
}

TokenStream::TokenStream(Dataset data, int64_t sequence, int64_t rows_per_step, int64_t seed,
                         int64_t prefetch)
    : TokenStream(window_rows(std::move(data.train), sequence, seed), rows_per_step, {1, prefetch}) {}

TokenStream::~TokenStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Batch TokenStream::read(int64_t step, int64_t first, int64_t count) {
  int64_t last_sample = 0;
  const bool overflow = __builtin_mul_overflow(step, rows_per_step_, &last_sample) ||
                        __builtin_add_overflow(last_sample, rows_per_step_, &last_sample);
  TORCH_CHECK(step >= 0 && first >= 0 && count >= 1 && count <= rows_per_step_ &&
                  first <= rows_per_step_ - count && !overflow,
              "rows [", first, ", ", first, " + ", count, ") of step ", step, ", which has ", rows_per_step_);
  const Request request{step, first, count};
  if (prefetch_ == 0) return load(request, rows_->allocate(count));

  std::unique_lock lock(mutex_);
  note(request);
  std::shared_ptr<Slot> ready;
  if (!planned_.empty() && planned_.front()->request == request) {
    ready = planned_.front();
    planned_.pop_front();
    ++foreseen_;
  } else {
    planned_.clear();
  }
  plan(request);
  if (ready) return await(lock, *ready);
  lock.unlock();
  return load(request, rows_->allocate(count));
}

Batch TokenStream::await(std::unique_lock<std::mutex>& lock, Slot& slot) {
  // No worker has started on it: reading it here is faster than waiting for a thread to wake.
  if (!slot.taken) {
    slot.taken = true;
    lock.unlock();
    return load(slot.request, std::move(slot.batch));
  }
  changed_.wait(lock, [&] { return slot.done; });
  if (slot.error) std::rethrow_exception(slot.error);
  return std::move(slot.batch);
}

Batch TokenStream::load(const Request& request, Batch batch) const {
  const int64_t step = request.step * rows_per_step_;
  const auto stop = [this] { return stop_ || asked_to_stop_(); };
  if (!rows_->fill(step + request.first, batch, stop)) return {};
  if (batch.documents.defined()) {
    batch.share =
        static_cast<double>(batch.filled) / static_cast<double>(rows_->filled(step, rows_per_step_));
  }
  return batch;
}

// Keeps the reads of the last complete step, which later steps are expected to repeat.
void TokenStream::note(const Request& request) {
  if (!current_.empty() && current_.back().step != request.step) {
    previous_ = std::move(current_);
    current_.clear();
  }
  current_.push_back(request);
}

TokenStream::Request TokenStream::predict(const Request& last) const {
  const auto same_rows = [&](const Request& r) { return r.first == last.first && r.count == last.count; };
  const auto found = std::ranges::find_if(previous_, same_rows);
  if (found != previous_.end()) {
    const bool ends_step = found + 1 == previous_.end();
    const Request& next = ends_step ? previous_.front() : *(found + 1);
    return {last.step + (ends_step ? 1 : 0), next.first, next.count};
  }
  // In the first step: consecutive rows; the next step starts where this one began.
  if (last.first + 2 * last.count <= rows_per_step_) return {last.step, last.first + last.count, last.count};
  return {last.step + 1, current_.front().first, current_.front().count};
}

void TokenStream::plan(Request last) {
  if (!planned_.empty()) last = planned_.back()->request;
  while (static_cast<int64_t>(planned_.size()) < prefetch_) {
    last = predict(last);
    planned_.push_back(std::make_shared<Slot>(Slot{last, rows_->allocate(last.count)}));
  }
  changed_.notify_all();
}

std::shared_ptr<TokenStream::Slot> TokenStream::next_pending() const {
  const auto found = std::ranges::find_if(planned_, [](const auto& slot) { return !slot->taken; });
  return found == planned_.end() ? nullptr : *found;
}

void TokenStream::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Slot> slot;
    changed_.wait(lock, [&] { return stop_ || (slot = next_pending()); });
    if (stop_) return;
    slot->taken = true;
    lock.unlock();
    try {
      slot->batch = load(slot->request, std::move(slot->batch));
    } catch (...) {
      slot->error = std::current_exception();
    }
    lock.lock();
    slot->done = true;
    changed_.notify_all();
  }
}

// The same order in every run, whatever its seed.
constexpr uint64_t kValidationKey = 0x76616c6964;

ValidationStream::ValidationStream(Dataset data, int64_t sequence, int64_t rows)
    : sources_(std::move(data.validation)),
      mixture_(weights_of(sources_)),
      sequence_(sequence),
      rows_(rows),
      windows_(turns_without_repeat(mixture_, windows_of(sources_, sequence))) {
  TORCH_CHECK(rows >= 1 && windows_ >= 1, "ValidationStream of ", rows, " rows and ", windows_, " windows");
}

Batch ValidationStream::read(int64_t batch) const {
  TORCH_CHECK(batch >= 0 && batch < batches(), "validation batch ", batch, " of ", batches());
  std::vector<Permutation> order;
  for (const int64_t windows : windows_of(sources_, sequence_)) order.emplace_back(windows, kValidationKey);
  std::vector<Sample> samples;
  const int64_t end = std::min(windows_, (batch + 1) * rows_);
  for (int64_t n = batch * rows_; n < end; ++n) {
    const Mixture::Turn turn = mixture_.at(n);
    samples.push_back({turn.source, static_cast<int64_t>(order[turn.source](turn.number))});
  }
  const Batch out = allocate_windows(static_cast<int64_t>(samples.size()), sequence_);
  gather(sources_, samples, out);
  return out;
}

}  // namespace moelab
