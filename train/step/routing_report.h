#pragma once
#include "moe/transformer.h"
#include "train/parallel/data_ranks.h"
#include "train/step/step_report.h"

namespace moelab {

// Replaces the model's counts of a step's routes by the sums over the ranks.
void add_routing_of_ranks(const Transformer& model, Communicator& ranks);

// A model's counts of a step's routes, on its device: for each layer, fp32, those to each expert and those
// dropped, one after another.
at::Tensor routing_counts(const Transformer& model);
// Those of all layers, of which the stages of a pipeline have some each, as fp64 on the host.
at::Tensor routing_of_stages(const Transformer& model, const DataRanks& ranks);
// Fills the report's fields on routing from those counts, which the host has read as fp64.
void read_routing(const at::Tensor& counts, int64_t layers, StepReport& report);

}  // namespace moelab
