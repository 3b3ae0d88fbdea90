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

at::Tensor routing_counts(const Transformer& model) {
  std::vector<at::Tensor> counts;
  for (const RoutingStats& stats : model.routing_stats())
    counts.insert(counts.end(), {stats.load_E, stats.dropped.view(1)});
  return at::cat(counts);
}

at::Tensor routing_of_stages(const Transformer& model, const DataRanks& ranks) {
  const at::Tensor own = routing_counts(model).to(at::kCPU, at::kDouble);
  if (ranks.stages->size() == 1) return own;
  const HomeScope outside(Home::host);
  const int64_t blocks = model.stage().blocks(), each = own.numel() / blocks;
  std::vector<double> all(model.settings().layers * each);
  for (int64_t i = 0; i < blocks; ++i)
    std::copy_n(own.const_data_ptr<double>() + i * each, each, all.begin() + model.stage().layer(i) * each);
  return at::tensor(sum_over_stages(ranks, all), at::kDouble);
}

void read_routing(const at::Tensor& counts, int64_t layers, StepReport& report) {
  double dropped = 0, routes = 0;
  report.load_max_over_mean = 0;
  for (const at::Tensor& of_layer : counts.view({layers, -1}).unbind()) {
    const int64_t E = of_layer.numel() - 1;
    const at::Tensor load = of_layer.narrow(0, 0, E);
    const double total = std::max(1.0, load.sum().item<double>());
    const at::Tensor share = load / total;
    report.load_max_over_mean +=
        share.max().item<double>() * static_cast<double>(E) / static_cast<double>(layers);
    report.load_entropy -= at::xlogy(share, share).sum().item<double>() / static_cast<double>(layers);
    dropped += of_layer[E].item<double>();
    routes += total;
  }
  report.dropped_fraction = dropped / routes;
}

}  // namespace moelab
