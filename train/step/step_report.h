#pragma once
#include <cstdint>
#include <optional>

#include "kernels/attention/attention_span.h"
#include "kernels/memory/ledger.h"
#include "kernels/update/step_decision.h"
#include "train/data/rows.h"

namespace moelab {

// What a () tensor holds; 0 on the meta device. Waits for the device.
double value_of(const at::Tensor& scalar);

// The numbers of one micro-batch, which ranks send one another.
struct MicroBatchReport {
  double cross_entropy = 0, balance_loss = 0, z_loss = 0, reference_kl = 0;  // as LossParts'
  double share = 0;                                                          // of the step
  int64_t tokens = 0;                                                        // without padding
  int64_t places = 0;  // token positions, padding included
  double pairs = 0;    // query-key pairs that attention compares

  // `losses`: cross entropy, balance loss, z-loss and reference_kl.
  void take_losses(const double* losses);
  // Counts the batch's tokens, places and pairs.
  void count(const Batch& batch, const AttentionSpan& span);
};

// How long a stage of a pipeline has been at its passes of training, and waited for other stages.
struct StageSeconds {
  double forward = 0, backward = 0, waited = 0;
};

// Seconds in which a step stood still until bytes had come from the host or a file, or had gone there:
// weights, gradients, optimizer state, saved tensors. What a GPU waits for by itself is not among them: the
// host queues such copies and goes on.
struct HomeSeconds {
  double host = 0, nvme = 0;

  void add(Home home, double seconds) {
    if (home == Home::host) host += seconds;
    if (home == Home::nvme) nvme += seconds;
  }
  HomeSeconds since(const HomeSeconds& before) const { return {host - before.host, nvme - before.nvme}; }
};

// What one optimizer step did. Losses are means over the tokens of the step's micro-batches.
struct StepReport {
  double loss = 0;  // cross entropy, nats, without the auxiliary losses
  double balance_loss = 0;
  double z_loss = 0;
  std::optional<double> reference_kl;  // nats a token, unweighted; none without a reference
  double lr = 0;
  double loss_scale = 1;          // the scale used in this step
  double gradient_norm = 0;       // before clipping, without the loss scale
  double load_max_over_mean = 1;  // busiest expert over the mean, averaged over the layers
  double load_entropy = 0;        // of the routes over the experts, nats, averaged over the layers
  double dropped_fraction = 0;    // fraction of all routes
  bool skipped = false;           // loss or gradients were not finite: nothing was updated; with
                                  // optim.in_backward, the parameters of such gradients were not
  bool interrupted = false;       // stopped between micro-batches: nothing was updated
  int64_t micro_batch = 0;        // rows per micro-batch
  int64_t tokens = 0;             // of all micro-batches, without padding
  int64_t places = 0;             // token positions, padding included
  double pairs = 0;               // query-key pairs that attention compares
  HomeSeconds waited;

  // Adds a micro-batch: its counts, and its losses weighted by its share of the step.
  void add(const MicroBatchReport& batch);
  void take(const StepDecision& decision) {
    skipped = decision.skipped;
    gradient_norm = decision.gradient_norm;
  }
  // Fraction of positions that hold tokens.
  double fill() const { return static_cast<double>(tokens) / static_cast<double>(places); }
};

}  // namespace moelab
