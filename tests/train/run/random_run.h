#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "train/config/resolve.h"
#include "train/run/trainer.h"

// A small trainer on made-up tokens, for tests of a whole step.
namespace moelab::test {

// moe-pico's proportions, smaller still.
inline Settings small_settings() {
  Settings s;
  s.model.vocab = 61;
  s.model.d_model = 32;
  s.model.layers = 4;
  s.model.heads = 4;
  s.model.d_expert = 48;
  s.train.micro_batch = 4;
  s.train.sequence = 24;
  s.train.steps = 8;
  s.optim.warmup = 1;
  return resolve(s);
}

inline Batch random_batch(const Settings& s, int64_t step, int64_t first, int64_t rows) {
  Batch batch;
  for (int64_t row = first; row < first + rows; ++row) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * step + row + 1));
    const at::Tensor ids = at::randint(s.model.vocab, {1, s.train.sequence + 1}, generator, at::kLong);
    const auto add = [&](at::Tensor& to, int64_t from) {
      const at::Tensor part = ids.narrow(1, from, s.train.sequence).contiguous();
      to = to.defined() ? at::cat({to, part}) : part;
    };
    add(batch.tokens, 0);
    add(batch.targets, 1);
  }
  return batch;
}

inline BatchSource random_batches(const Settings& s) {
  return [s](int64_t step, int64_t first, int64_t rows) { return random_batch(s, step, first, rows); };
}

}  // namespace moelab::test
