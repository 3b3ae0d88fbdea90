#pragma once
#include "moe/transformer.h"
#include "train/step/step_report.h"

namespace moelab {

// Replaces the model's counts of a step's routes by the sums over the ranks.
void add_routing_of_ranks(const Transformer& model, Communicator& ranks);

// Fills the report's fields on routing from the counts of a model that has experts. Waits for the device.
void read_routing(const Transformer& model, StepReport& report);

}  // namespace moelab
