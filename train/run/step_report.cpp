#include "train/run/step_report.h"

#include <cmath>

#include "train/run/flops.h"

namespace moelab {

void StepReport::count(const Batch& batch, const AttentionSpan& span) {
  tokens += batch.documents.defined() ? batch.filled : batch.tokens.numel();
  places += batch.tokens.numel();
  pairs += attended_pairs(batch, span);
}

void StepReport::add(double cross_entropy, double balance, double z, double share) {
  loss = std::fma(cross_entropy, share, loss);  // explicit fma: same bits wherever compiled
  balance_loss = std::fma(balance, share, balance_loss);
  z_loss = std::fma(z, share, z_loss);
}

}  // namespace moelab
