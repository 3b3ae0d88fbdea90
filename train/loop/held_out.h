#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

#include "train/data/token_stream.h"
#include "train/settings/settings.h"

namespace moelab {

// Computes a run's held-out loss in batches of eval.micro_batch rows, or fewer after a batch ran out of
// memory. The windows stay the same, so the loss is the same up to rounding.
class HeldOut {
 public:
  // `reduced` is called when a batch of `from` rows ran out of memory and `to` rows are tried next.
  HeldOut(const Settings& settings, Dataset data, c10::Device device,
          std::function<void(int64_t from, int64_t to)> reduced);

  using Evaluate = std::function<double(const ValidationBatches& batches, int64_t count)>;
  // The result of `evaluate`. Rethrows its c10::OutOfMemoryError if the batch has 1 row or memory.recover is
  // false.
  double loss(const Evaluate& evaluate);

  int64_t batches() const;
  int64_t rows() const { return rows_; }

 private:
  Settings settings_;
  Dataset data_;
  c10::Device device_;
  std::function<void(int64_t, int64_t)> reduced_;
  int64_t rows_;
  ValidationStream stream_;
  int64_t windows_;  // in all batches together
};

}  // namespace moelab
