#include "train/step/step_report.h"

#include <ATen/ATen.h>

#include <cmath>

#include "train/step/flops.h"

namespace moelab {

double value_of(const at::Tensor& scalar) { return scalar.is_meta() ? 0 : scalar.item<double>(); }

void MicroBatchReport::take_losses(const double* losses) {
  cross_entropy = losses[0];
  balance_loss = losses[1];
  z_loss = losses[2];
  reference_kl = losses[3];
}

void MicroBatchReport::count(const Batch& batch, const AttentionSpan& span) {
  tokens = batch.documents.defined() ? batch.filled : batch.tokens.numel();
  places = batch.tokens.numel();
  pairs = attended_pairs(batch, span);
}

void StepReport::add(const MicroBatchReport& b) {
  loss = std::fma(b.cross_entropy, b.share, loss);  // explicit fma: same bits wherever compiled
  balance_loss = std::fma(b.balance_loss, b.share, balance_loss);
  z_loss = std::fma(b.z_loss, b.share, z_loss);
  if (reference_kl) *reference_kl += b.reference_kl * b.share;
  tokens += b.tokens;
  places += b.places;
  pairs += b.pairs;
}

}  // namespace moelab
