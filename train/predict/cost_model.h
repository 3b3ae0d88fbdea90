#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/predict/gpu.h"
#include "train/predict/step_cost.h"
#include "train/settings/settings.h"

namespace moelab {

// How far calibrated predictions were from the measurements, by cross-validation: each case is predicted by a
// fit to the others.
struct CostError {
  double median = 0, worst = 0;  // as a fraction of the step time
  int64_t cases = 0;
};

// Operations per second of matrix products, by the type of their factors.
struct GemmRates {
  double fp32 = 0, bf16 = 0, fp16 = 0;

  bool known() const { return fp32 > 0 && bf16 > 0 && fp16 > 0; }
};

// The time that a unit of each cost term takes on one device. A step's time is the sum over its terms.
struct CostModel {
  std::string device;  // cpu, h100, …
  std::string about;   // the machine, and the source of the costs
  DeviceChoice runs_on = DeviceChoice::cpu;
  Gpu gpu = {};               // unless it is the CPU
  std::string card;           // its name among preset_gpus(); empty: none of them
  bool fp8_products = false;  // whether the device has them; otherwise they are emulated
  std::vector<double> nanoseconds = std::vector<double>(cost_terms().size());  // in the order of cost_terms()
  std::optional<CostError> error;  // none: costs from the datasheet, never measured
  GemmRates gemm = {};             // of the machine where costs were measured; 0: not known

  double step_seconds(const StepCost& cost) const;
};

// One of the program's built-in devices. Throws UserError that suggests the nearest name.
const CostModel& cost_model(const std::string& device);
// The device with the card of this name in preset_gpus().
const CostModel& cost_model_of_card(std::string_view card);
std::vector<std::string> cost_devices();

// The contents of devices.json and calibration.json in this folder when the program was built.
extern const char* const kDevicesText;
extern const char* const kCalibrationText;

// Parses both texts (schema 1): all devices by datasheet, overridden by what was measured. Throws UserError,
// naming the device, for a term that is missing or unknown and for fp8_products that is not true or false.
std::vector<CostModel> parse_cost_models(const std::string& devices, const std::string& calibration);

}  // namespace moelab
