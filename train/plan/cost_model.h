#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/config/settings.h"
#include "train/plan/step_cost.h"

namespace moelab {

// How far the predictions of calibrated costs were from the measurements they were fitted to, each case
// predicted by a fit to the others.
struct CostError {
  double median = 0, worst = 0;  // share of the step time
  int64_t cases = 0;
};

// What a unit of each term of a step's cost takes on one device; a step's time is the sum.
struct CostModel {
  std::string device;  // cpu, h100, …
  std::string about;   // the machine and where the costs come from
  DeviceChoice runs_on = DeviceChoice::cpu;
  bool fp8_products = false;  // whether it has them; elsewhere they are emulated
  std::vector<double> nanoseconds = std::vector<double>(cost_terms().size());  // in the order of cost_terms()
  std::optional<CostError> error;  // none: by datasheet, never measured

  double step_seconds(const StepCost& cost) const;
};

// Of the program's own devices. Throws UserError with the nearest name.
const CostModel& cost_model(const std::string& device);
std::vector<std::string> cost_devices();

// devices.json and calibration.json of this folder as they were when the program was built.
extern const char* const kDevicesText;
extern const char* const kCalibrationText;

// Reads both, of schema 1: every device by datasheet, then what was measured in its place. Throws
// UserError, naming the device, for a term that is missing or unknown and where fp8_products is not true
// or false.
std::vector<CostModel> parse_cost_models(const std::string& devices, const std::string& calibration);

}  // namespace moelab
