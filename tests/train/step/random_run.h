#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/attention/document_attention.h"
#include "kernels/memory/ledger.h"
#include "train/settings/resolve.h"
#include "train/step/trainer.h"

// A small trainer on random tokens, for tests of whole steps.
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

// Number of padding positions in a packed row.
inline int64_t random_padding(const Settings& s, int64_t step, int64_t row) {
  return (7 * step + 5 * row) % (s.train.row() / 3);
}

// Documents of at most a third of the row and of train.sequence, one after another, then padding.
inline Batch random_packed_batch(const Settings& s, int64_t step, int64_t first, int64_t rows) {
  const int64_t T = s.train.row();
  Batch batch{at::zeros({rows, T}, at::kLong), at::full({rows, T}, -1, at::kLong),
              at::full({rows, T}, -1, at::kInt)};
  const int64_t most = std::min(T / 3, s.train.sequence);
  const auto filled = [&](int64_t row) { return T - random_padding(s, step, row); };
  for (int64_t row = first; row < first + rows; ++row) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * step + row + 1));
    const at::Tensor ids = at::randint(s.model.vocab, {filled(row) + 1}, generator, at::kLong);
    batch.tokens[row - first].narrow(0, 0, filled(row)).copy_(ids.narrow(0, 0, filled(row)));
    batch.targets[row - first].narrow(0, 0, filled(row)).copy_(ids.narrow(0, 1, filled(row)));
    for (int64_t start = 0, length = 1 + row % 5; start < filled(row); start += length, length = most) {
      length = std::min(length, filled(row) - start);
      batch.documents[row - first].narrow(0, start, length).fill_(start);
    }
    batch.filled += filled(row);
  }
  int64_t all = 0;
  for (int64_t row = 0; row < s.train.micro_batch * s.train.accumulation; ++row) all += filled(row);
  batch.share = static_cast<double>(batch.filled) / static_cast<double>(all);
  batch.room = document_room(batch.documents, s.train.sequence);
  return batch;
}

inline Batch random_batch(const Settings& s, int64_t step, int64_t first, int64_t rows) {
  if (s.train.tokens_per_device > 0) return random_packed_batch(s, step, first, rows);
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

// Tensor bytes at each home's peak, without scratch inside libraries, and bytes of the state.
struct MeasuredRun {
  int64_t device = 0, host = 0, nvme = 0;
  Trainer::StateBytes state;
};

// The run that a dry run predicts, on the CPU: two steps, and an evaluation if there is one. The batches, of
// which a dry run counts one, are made on the host before measuring.
inline MeasuredRun measured_run(const Settings& s) {
  install_allocators();
  std::vector<Batch> batches;
  for (int64_t i = 0; i < 2 * s.train.accumulation; ++i) {
    const HomeScope outside(Home::host);
    batches.push_back(random_batch(s, i, 0, s.train.micro_batch));
  }
  Ledger &device = cpu_ledger(), &host = cpu_ledger(Home::host), &nvme = cpu_ledger(Home::nvme);
  const int64_t before = device.allocated(), host_before = host.allocated();
  device.enter_phase(Phase::init);
  for (Ledger* ledger : {&device, &host, &nvme}) ledger->reset_peaks();
  Trainer trainer(s, at::kCPU, [&](int64_t step, int64_t first, int64_t) {
    return batches[step * s.train.accumulation + first / s.train.micro_batch];
  });
  trainer.step(0);
  trainer.step(1);
  if (s.eval.batches > 0) trainer.evaluate([&](int64_t) { return batches[0]; }, 1);
  return {device.tensor_peak() - before, host.tensor_peak() - host_before, nvme.peak(),
          trainer.state_bytes()};
}

}  // namespace moelab::test
