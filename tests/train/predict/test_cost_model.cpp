#include "train/predict/cost_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/user_error.h"

namespace moelab {
namespace {

using Json = nlohmann::json;

Json costs(double each) {
  Json all;
  for (const std::string_view term : cost_terms()) all[std::string(term)] = each;
  return all;
}

Json devices() {
  return {{"schema", 1},
          {"devices",
           {{"cpu",
             {{"about", "a CPU"}, {"runs_on", "cpu"}, {"fp8_products", true}, {"nanoseconds", costs(2)}}}}}};
}
const Json kNone = {{"schema", 1}, {"devices", Json::object()}};

TEST(CostModel, AStepIsTheSumOfItsTerms) {
  const auto models = parse_cost_models(devices().dump(), kNone.dump());
  ASSERT_EQ(models.size(), 1u);
  StepCost cost;
  cost.add({cost_terms().front(), 3e9});
  cost.add({cost_terms().back(), 1e9});
  EXPECT_DOUBLE_EQ(models[0].step_seconds(cost), 8);
  EXPECT_FALSE(models[0].error.has_value());
  EXPECT_TRUE(models[0].fp8_products);
}

TEST(CostModel, WhatWasMeasuredTakesTheDatasheetsPlace) {
  const Json measured = {{"schema", 1},
                         {"devices",
                          {{"cpu",
                            {{"machine", "mine"},
                             {"nanoseconds", costs(5)},
                             {"error", {{"median", 0.1}, {"worst", 0.2}, {"cases", 7}}}}}}}};
  const auto models = parse_cost_models(devices().dump(), measured.dump());
  EXPECT_EQ(models[0].nanoseconds[1], 5);
  EXPECT_EQ(models[0].about, "mine");
  EXPECT_EQ(models[0].error->cases, 7);
}

TEST(CostModel, MistakesAreNamed) {
  Json missing = devices(), unknown = devices(), fp8 = devices(), gpu = devices();
  gpu["devices"]["l4"] = gpu["devices"]["cpu"];
  gpu["devices"]["l4"].erase("runs_on");
  EXPECT_NE(user_error([&] { parse_cost_models(gpu.dump(), kNone.dump()); }).find("capability"),
            std::string::npos);
  fp8["devices"]["cpu"]["fp8_products"] = "no";
  missing["devices"]["cpu"]["nanoseconds"].erase("row_bytes");
  unknown["devices"]["cpu"]["nanoseconds"]["magic"] = 1;
  EXPECT_EQ(user_error([&] { parse_cost_models(missing.dump(), kNone.dump()); }),
            "devices.json: cpu: lacks the cost of row_bytes");
  EXPECT_EQ(user_error([&] { parse_cost_models(fp8.dump(), kNone.dump()); }),
            "devices.json: cpu: fp8_products is neither true nor false");
  EXPECT_EQ(user_error([&] { parse_cost_models(unknown.dump(), kNone.dump()); }),
            "devices.json: cpu: has a cost for magic, which is no term of the cost model");
  EXPECT_NE(user_error([&] { parse_cost_models("{}", kNone.dump()); }).find("schema 1"), std::string::npos);
  EXPECT_NE(user_error([&] { cost_model("h10"); }).find("h100"), std::string::npos);
}

TEST(CostModel, EveryDeviceOfTheProgramHasCosts) {
  for (const std::string& device : cost_devices()) EXPECT_GT(cost_model(device).nanoseconds[0], 0) << device;
  for (const char* ampere : {"rtx3090", "a100"}) EXPECT_FALSE(cost_model(ampere).fp8_products) << ampere;
  EXPECT_TRUE(cost_model("h100").fp8_products);
  // on CUDA each product converts its factors first (compute_facts)
  for (const std::string& device : cost_devices()) {
    const CostModel& model = cost_model(device);
    const auto cost = [&](const char* term) { return model.nanoseconds[index_of_term(term)]; };
    if (model.runs_on == DeviceChoice::cuda) {
      EXPECT_NEAR(cost("products_fp8") / cost("products_bf16"), 3, 0.02) << device;
    }
  }
  EXPECT_EQ(cost_model("cpu").runs_on, DeviceChoice::cpu);
  EXPECT_EQ(cost_model("h100").runs_on, DeviceChoice::cuda);
}

}  // namespace
}  // namespace moelab
