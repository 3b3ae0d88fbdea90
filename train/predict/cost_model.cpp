#include "train/predict/cost_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "moe/settings/error.h"
#include "train/settings/assign.h"
#include "train/settings/common_names.h"
#include "train/settings/presets/presets.h"

namespace moelab {
namespace {

using Json = nlohmann::json;

void read_costs(CostModel& model, const Json& costs, const std::string& where) {
  const std::vector<std::string_view>& terms = cost_terms();
  for (size_t i = 0; i < terms.size(); ++i) {
    const std::string name(terms[i]);
    if (!costs.contains(name)) throw UserError(where + ": lacks the cost of " + name);
    model.nanoseconds[i] = costs.at(name).get<double>();
    if (!(model.nanoseconds[i] >= 0)) throw UserError(where + ": the cost of " + name + " is negative");
  }
  for (const auto& [name, unused] : costs.items())
    if (std::find(terms.begin(), terms.end(), name) == terms.end())
      throw UserError(where + ": has a cost for " + name + ", which is no term of the cost model");
}

Json parse(const std::string& text, const char* file) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || json.value("schema", 0) != 1)
    throw UserError(std::string(file) + ": expected JSON of schema 1");
  return json;
}

CostModel by_datasheet(const std::string& name, const Json& entry) {
  CostModel model;
  model.device = name;
  model.about = entry.at("about").get<std::string>();
  model.runs_on = entry.value("runs_on", "cuda") == "cpu" ? DeviceChoice::cpu : DeviceChoice::cuda;
  if (model.runs_on == DeviceChoice::cuda) model.gpu = {name, entry.at("capability").get<int>()};
  model.card = entry.value("card", "");
  const auto fp8 = entry.find("fp8_products");
  if (fp8 == entry.end() || !fp8->is_boolean())
    throw UserError("devices.json: " + name + ": fp8_products is neither true nor false");
  model.fp8_products = fp8->get<bool>();
  read_costs(model, entry.at("nanoseconds"), "devices.json: " + name);
  return model;
}

void calibrate(CostModel& model, const Json& entry) {
  read_costs(model, entry.at("nanoseconds"), "calibration.json: " + model.device);
  const Json& error = entry.at("error");
  model.about = entry.at("machine").get<std::string>();
  model.error = {error.at("median").get<double>(), error.at("worst").get<double>(),
                 error.at("cases").get<int64_t>()};
  if (const auto gemm = entry.find("gemm_rates"); gemm != entry.end())
    model.gemm = {gemm->value("fp32", 0.0), gemm->value("bf16", 0.0), gemm->value("fp16", 0.0)};
}

const std::vector<CostModel>& cost_models() {
  static const std::vector<CostModel> models = parse_cost_models(kDevicesText, kCalibrationText);
  return models;
}

}  // namespace

double CostModel::step_seconds(const StepCost& cost) const {
  double sum = 0;
  for (size_t i = 0; i < nanoseconds.size(); ++i) sum += nanoseconds[i] * cost.amounts()[i];
  return sum * 1e-9;
}

std::vector<CostModel> parse_cost_models(const std::string& devices, const std::string& calibration) {
  std::vector<CostModel> models;
  try {
    const Json known_devices = parse(devices, "devices.json"),
               measured = parse(calibration, "calibration.json");
    for (const auto& [name, entry] : known_devices.at("devices").items())
      models.push_back(by_datasheet(name, entry));
    for (const auto& [name, entry] : measured.at("devices").items()) {
      const auto known = std::find_if(models.begin(), models.end(),
                                      [&](const CostModel& model) { return model.device == name; });
      if (known == models.end())
        throw UserError("calibration.json has measurements of the device " + name +
                        ", which devices.json does not list; add it there");
      calibrate(*known, entry);
    }
  } catch (const Json::exception& error) {
    throw UserError(std::string("devices.json or calibration.json: ") + error.what());
  }
  return models;
}

std::vector<std::string> cost_devices() {
  std::vector<std::string> names;
  for (const CostModel& model : cost_models()) names.push_back(model.device);
  return names;
}

const CostModel& cost_model(const std::string& device) {
  for (const CostModel& model : cost_models())
    if (model.device == device) return model;
  const std::string preset = by_common_name(device, names_of(run_presets()));
  throw UserError("--device " + device + ": nothing is known of its speed" +
                  (preset.empty() ? did_you_mean(device, cost_devices())
                                  : "; for a card of its memory give --preset " + preset));
}

const CostModel& cost_model_of_card(std::string_view card) {
  for (const CostModel& model : cost_models())
    if (model.card == card) return model;
  throw std::logic_error("devices.json has no device with the card " + std::string(card));
}

}  // namespace moelab
