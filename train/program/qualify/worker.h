#pragma once
#include <c10/core/Device.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/moe/expert_probes.h"
#include "train/program/qualify/try_variants.h"

// Variants are tried in a process of their own, because one that crashes takes its process along, and a
// kernel that faults its CUDA context.
namespace moelab {

struct WorkerTask {
  int64_t gpu = 0;
  ExpertSizes sizes;
  std::set<std::string> skipped = {};  // "operator/variant"
};

// In the worker: tries the variants one after another, and prints a line of JSON before each and after it.
// `task`: JSON.
void run_worker(const std::string& task);

// Starts workers, `program qualify --worker TASK`, until all variants are tried: one that ends a worker, or
// keeps it for more than `patience` seconds, has failed, and another worker goes on behind it. Throws
// UserError when workers cannot try anything, and when one is ended by SIGINT or SIGTERM.
std::vector<TriedVariant> try_in_workers(const std::string& program, WorkerTask task, double patience);

}  // namespace moelab
