#pragma once
#include <c10/core/Device.h>

#include <string>

#include "train/parallel/world.h"
#include "train/predict/gpu.h"
#include "train/settings/settings.h"

namespace moelab {

// Why this program cannot use the machine's GPU `index`, with the way out, in one line; empty: it can.
// Reasons: a build without CUDA, no driver, a driver too old for the build's CUDA, no GPU, no kernels for its
// architecture.
std::string gpu_obstacle(int64_t index = 0);

struct ChosenDevice {
  c10::Device device;
  // What a user should know of the choice, one line: how far the GPU's kernels are proved, or why a GPU that
  // is there is not used. Empty: nothing.
  std::string note = {};
};

// The device of run.device. auto: the GPU, unless it cannot be used, scripts/gpu_check.sh failed on it, or
// this machine has more ranks than GPUs; then the CPU. Of several ranks each has a GPU of its own. Throws
// UserError if run.device=cuda cannot be used.
ChosenDevice choose_device(DeviceChoice wanted, const World& world = {});

// What to know before a run whose preset is for a card starts on a CPU that nobody asked for: one line, with
// what to give instead. Empty: nothing. `asked`: the settings before a device was chosen. A limit below the
// card's memory, as a miniature has, needs no warning.
std::string without_its_card(const Settings& asked, c10::Device chosen);

// The GPU `device`, for predictions.
Gpu gpu_at(c10::Device device);

// What a prediction without a run is for: the card of run.preset if that names one, whatever the machine;
// else the device that a run would have here.
struct Predicted {
  Settings settings;  // run.device is no longer auto
  Gpu gpu;
};
Predicted predicted_on(const Settings& settings);

// The settings with run.device=auto replaced by the device that was chosen, and with what follows from it.
Settings on_device(Settings settings, c10::Device device);

}  // namespace moelab
