#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "train/program/tensorboard/metric_scalars.h"

namespace moelab {
namespace {

using Named = std::map<std::string, float>;

Named named(const char* line) {
  Named result;
  for (const Scalar& scalar : metric_scalars(nlohmann::ordered_json::parse(line)))
    EXPECT_TRUE(result.emplace(scalar.tag, scalar.value).second) << scalar.tag << " twice";
  return result;
}

// All numbers differ, unlike in some runs (allocated and reserved bytes on a CPU).
TEST(MetricScalars, EachNumberHasItsName) {
  EXPECT_EQ(named(R"({"step": 1, "tokens": 2, "loss": 3, "balance_loss": 4, "z_loss": 5, "held_out_loss": 6,
                      "expert_load": {"max_over_mean": 7, "entropy": 8}, "dropped_fraction": 9, "lr": 10,
                      "grad_norm": 11, "loss_scale": 12, "micro_batch": 13, "step_ms": 14,
                      "tokens_per_second": 15, "allocated_bytes": 16, "reserved_bytes": 17, "peak_bytes": 18,
                      "peak_bytes_by_kind": {"optimizer": 19, "parameters.experts": 20},
                      "waited_ms": {"host": 21, "nvme": 22}, "status": "ok"})"),
            (Named{{"loss/train", 3},
                   {"loss/balance", 4},
                   {"loss/z", 5},
                   {"loss/heldout", 6},
                   {"experts/load_max_over_mean", 7},
                   {"experts/load_entropy", 8},
                   {"experts/dropped_fraction", 9},
                   {"optim/lr", 10},
                   {"optim/grad_norm", 11},
                   {"optim/loss_scale", 12},
                   {"speed/micro_batch", 13},
                   {"speed/step_ms", 14},
                   {"speed/waited_ms_for_host", 21},
                   {"speed/waited_ms_for_nvme", 22},
                   {"speed/tokens_per_second", 15},
                   {"memory/allocated", 16},
                   {"memory/reserved", 17},
                   {"memory/peak", 18},
                   {"memory/peak_by_kind/optimizer", 19},
                   {"memory/peak_by_kind/parameters.experts", 20}}));
}

TEST(MetricScalars, WhatIsNullOrMissingIsLeftOut) {
  EXPECT_EQ(named(R"({"step": 1, "loss": null, "lr": 0.5})"), (Named{{"optim/lr", 0.5f}}));
}

}  // namespace
}  // namespace moelab
