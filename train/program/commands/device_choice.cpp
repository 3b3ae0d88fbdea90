#include "train/program/commands/device_choice.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "kernels/memory/device_memory.h"
#include "kernels/operator/architectures.h"
#include "kernels/operator/gpu.h"
#include "moe/settings/error.h"
#include "train/io/proc_file.h"
#include "train/program/qualify/kernel_choice.h"
#include "train/program/record/gpu_check.h"
#include "train/settings/presets/presets.h"
#include "train/settings/resolve.h"

namespace moelab {
namespace {

// NVIDIA's first driver for CUDA 13 on Linux:
// https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/
constexpr const char* kDriverForCuda13 = "580";

constexpr const char* kWithoutGpu = "train with run.device=cpu";

int64_t gpu_count() {
  return driver_cuda_version() > 0 ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
}

std::string cuda_name(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string missing_architecture(c10::Device gpu) {
  const int capability = compute_capability(gpu);
  const std::string built = built_architectures();
  if (runs_on(built, capability)) return "";
  return fmt::format(
      "{} has compute capability {}, and this build has kernels for {} alone; configure with "
      "-DMOELAB_CUDA_ARCHITECTURES=native and build again, or {}",
      gpu_model(gpu), capability_text(capability), built, kWithoutGpu);
}

std::string standing_of(c10::Device gpu) {
  const std::string name = gpu_model(gpu);
  const GpuCheck check = gpu_check_of(name);
  switch (check.outcome) {
    case GpuCheck::Outcome::passed:
      return fmt::format("{}: scripts/gpu_check.sh passed here on {}", name, check.date);
    case GpuCheck::Outcome::failed:
      return fmt::format("{}: scripts/gpu_check.sh failed here ({}); {}", name, check.failed, kWithoutGpu);
    case GpuCheck::Outcome::never_ran:
      break;
  }
  if (const std::string date = qualification_date(gpu); !date.empty())
    return fmt::format(
        "{}: the kernels of experts agreed here with LibTorch's operators on {}; scripts/gpu_check.sh checks "
        "all",
        name, date);
  return fmt::format(
      "{}: moelab's kernels are unproved on this GPU; prove them with scripts/gpu_check.sh, or {}", name,
      kWithoutGpu);
}

std::string why_not(const World& world) {
  if (std::string obstacle = gpu_obstacle(); !obstacle.empty()) return obstacle;
  if (const int64_t gpus = gpu_count(); gpus < world.local_size)
    return fmt::format("{} ranks are on this machine, and {} visible", world.local_size,
                       gpus == 1 ? "1 GPU is" : fmt::format("{} GPUs are", gpus));
  const GpuCheck check = gpu_check_of(gpu_model(gpu_of(world, gpu_count())));
  if (check.outcome != GpuCheck::Outcome::failed) return "";
  return fmt::format("scripts/gpu_check.sh failed on it ({}); run.device=cuda takes it all the same",
                     check.failed);
}

bool machine_has_gpu() { return !first_gpu_name().empty() || driver_cuda_version() > 0; }

}  // namespace

std::string gpu_obstacle(int64_t index) {
  const int needed = built_cuda_version(), served = driver_cuda_version();
  if (needed == 0) {
    return fmt::format(
        "this build has no CUDA; scripts/setup.sh --cuda wheels and a new build bring it, or {}",
        kWithoutGpu);
  }
  if (served == 0) return fmt::format("there is no NVIDIA driver; {}", kWithoutGpu);
  if (served / 1000 < needed / 1000) {
    return fmt::format(
        "the NVIDIA driver serves CUDA {}, and this build needs CUDA {}; install driver {} or newer, or {}",
        cuda_name(served), cuda_name(needed), kDriverForCuda13, kWithoutGpu);
  }
  if (gpu_count() <= index) return fmt::format("the driver shows no GPU {}; {}", index, kWithoutGpu);
  return missing_architecture({c10::kCUDA, static_cast<c10::DeviceIndex>(index)});
}

ChosenDevice choose_device(DeviceChoice wanted, const World& world) {
  if (wanted == DeviceChoice::cpu) return {c10::kCPU};
  if (wanted == DeviceChoice::automatic) {
    if (const std::string reason = why_not(world); !reason.empty())
      return {c10::kCPU, machine_has_gpu() ? "the GPU is not used: " + reason : ""};
  } else if (const std::string obstacle = gpu_obstacle(); !obstacle.empty()) {
    throw UserError("run.device=cuda: " + obstacle);
  }
  const c10::Device gpu = gpu_of(world, gpu_count());
  if (const std::string obstacle = missing_architecture(gpu); !obstacle.empty())
    throw UserError("run.device=cuda: " + obstacle);
  return {gpu, standing_of(gpu)};
}

std::string without_its_card(const Settings& asked, c10::Device chosen) {
  const Gpu card = gpu_of_preset(asked);
  const bool expected = asked.run.device == DeviceChoice::cpu || find_card(asked.run.preset) == nullptr;
  if (chosen.is_cuda() || expected || asked.memory.limit.count < card.bytes) return "";
  return fmt::format(
      "warning: {} is for a GPU, such as {}, and none can be used here: the run is on the CPU, many times "
      "slower; add --scale 1/64 for a miniature, or let moelab plan --memory {}GiB choose for this CPU",
      asked.run.preset, card.name, card.bytes >> 30);
}

Gpu gpu_at(c10::Device device) {
  return {gpu_model(device), compute_capability(device), total_memory(device)};
}

Predicted predicted_on(const Settings& settings) {
  const bool of_card = find_card(settings.run.preset) != nullptr;
  if (settings.run.device == DeviceChoice::cpu) return {settings, {}};
  if (of_card) return {on_device(settings, c10::kCUDA), gpu_of_preset(settings)};
  const bool usable = gpu_obstacle().empty();
  if (settings.run.device == DeviceChoice::automatic && !usable) return {on_device(settings, c10::kCPU), {}};
  return {on_device(settings, c10::kCUDA), usable ? gpu_at({c10::kCUDA, 0}) : Gpu{}};
}

Settings on_device(Settings settings, c10::Device device) {
  settings.run.device = device.is_cuda() ? DeviceChoice::cuda : DeviceChoice::cpu;
  return resolve(std::move(settings));
}

}  // namespace moelab
