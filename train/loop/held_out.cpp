#include "train/loop/held_out.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "train/memory/split.h"

namespace moelab {

HeldOut::HeldOut(const Settings& settings, Dataset data, c10::Device device,
                 std::function<void(int64_t, int64_t)> reduced)
    : settings_(settings),
      data_(std::move(data)),
      device_(device),
      reduced_(std::move(reduced)),
      rows_(settings.eval.micro_batch),
      stream_(data_, settings.train.sequence, rows_),
      windows_(std::min(std::min(settings.eval.batches, stream_.batches()) * rows_, stream_.windows())) {}

int64_t HeldOut::batches() const { return (windows_ + rows_ - 1) / rows_; }

double HeldOut::loss(const Evaluate& evaluate) {
  while (true) {
    try {
      return evaluate([&](int64_t b) { return stream_.read(b); }, batches());
    } catch (const c10::OutOfMemoryError&) {
      const auto smaller = halved({rows_, 1});
      if (!smaller || !settings_.memory.recover) throw;
      reduced_(std::exchange(rows_, smaller->micro_batch), smaller->micro_batch);
    }
    if (device_.is_cpu()) cpu_ledger().clear_refused();
    release_cached(device_);
    stream_ = ValidationStream(data_, settings_.train.sequence, rows_);
  }
}

}  // namespace moelab
