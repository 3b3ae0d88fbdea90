#include "train/step/routing_report.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/memory/ledger.h"

namespace moelab {

// Counts of routes are integers, so that their sums are exact.
void add_routing_of_ranks(const Transformer& model, Communicator& ranks) {
  if (ranks.size() == 1) return;
  const HomeScope outside(Home::host);
  std::vector<at::Tensor> counts;
  for (const RoutingStats& stats : model.routing_stats()) {
    counts.push_back(stats.load_E);
    counts.push_back(stats.dropped.view(1));
  }
  const at::Tensor own = at::cat(counts).to(at::kCPU, at::kLong);
  const int64_t size = own.numel();
  const std::vector<int64_t> all = ranks.agree({own.const_data_ptr<int64_t>(), static_cast<size_t>(size)});
  const at::Tensor sums = at::tensor(all).view({ranks.size(), size}).sum(0);
  int64_t first = 0;
  for (at::Tensor& count : counts) {
    count.copy_(sums.narrow(0, first, count.numel()));
    first += count.numel();
  }
}

void read_routing(const Transformer& model, StepReport& report) {
  double dropped = 0, routes = 0;
  report.load_max_over_mean = 0;
  const auto layers = static_cast<double>(model.routing_stats().size());
  for (const RoutingStats& stats : model.routing_stats()) {
    const at::Tensor load = stats.load_E.to(at::kCPU, at::kDouble);
    const double total = std::max(1.0, load.sum().item<double>());
    const at::Tensor share = load / total;
    report.load_max_over_mean += share.max().item<double>() * static_cast<double>(share.numel()) / layers;
    report.load_entropy -= at::xlogy(share, share).sum().item<double>() / layers;
    dropped += stats.dropped.item<double>();
    routes += total;
  }
  report.dropped_fraction = dropped / routes;
}

}  // namespace moelab
