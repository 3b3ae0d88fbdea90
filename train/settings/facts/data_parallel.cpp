#include "train/settings/facts/data_parallel.h"

#include <algorithm>

#include "train/settings/facts/placement.h"
#include "train/settings/facts/precision.h"

namespace moelab {

int64_t data_ranks(const Settings& settings) { return std::max<int64_t>(1, settings.parallel.data); }

StateDivision state_division(const Settings& s) {
  const auto ranks = static_cast<double>(data_ranks(s));
  const int64_t zero = s.parallel.zero;
  const bool sums_own = s.parallel.reduce == Reduction::step && s.train.accumulation > 1;
  return {.weights = zero == 3 ? ranks : 1,
          .gradients = zero > 0 && !sums_own ? ranks : 1,
          .optimizer = zero > 0 ? ranks : 1};
}

int64_t gradient_exchanges(const Settings& s) {
  return s.parallel.reduce == Reduction::step ? 1 : s.train.accumulation;
}

double gradient_element_bytes(const Settings& s) {
  const bool summed = s.parallel.reduce == Reduction::step && s.train.accumulation > 1;
  return summed ? sum_bytes(s) : element_bytes(s);
}

SentBytes sent_bytes(const Settings& s, const WeightCounts& weights) {
  const auto ranks = static_cast<double>(data_ranks(s));
  const double others = (ranks - 1) / ranks, element = element_bytes(s);
  const bool coded = weight_code(s.precision).has_value();
  const int64_t zero = s.parallel.zero;
  SentBytes sent;
  sent.gradients = (zero > 0 ? others : ranks - 1) * weights.total() * gradient_element_bytes(s);
  if (zero == 1 || zero == 2) sent.updates = others * weights.total() * element;
  if (zero < 3) return sent;
  // coded weights are not divided as the optimizer's parts are, so that all ranks code what all have stepped
  if (coded) sent.updates = others * weights.in_blocks * element;
  sent.gathers = others * (weights.in_blocks * (coded ? kCodedBytes : element) + weights.outside * element);
  return sent;
}

double gathers_in_backward(const Settings& s) {
  return s.parallel.zero == 3 && s.placement.reshard_after_forward ? weight_visits(s) - 1 : 0;
}

bool waits_for_updates(const Settings& s) {
  const bool moved = s.placement.parameters != Home::device || weight_code(s.precision).has_value();
  return s.optim.in_backward || moved || s.parallel.zero == 3;
}

}  // namespace moelab
