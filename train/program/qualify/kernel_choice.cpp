#include "train/program/qualify/kernel_choice.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "kernels/operator/gpu.h"
#include "moe/settings/error.h"
#include "train/io/json_text.h"
#include "train/io/proc_file.h"
#include "train/program/qualify/worker.h"
#include "train/program/record/build_commit.h"
#include "train/step/compute_type.h"

namespace moelab {
namespace {

constexpr double kPatience = 60;  // seconds for one variant
constexpr const char* kPlain = "plain";

std::string& qualifying_program() {
  static std::string path;
  return path;
}

// Whether the environment asks for the plain kernels.
bool plain_is_asked_for() {
  const char* const asked = std::getenv("MOELAB_KERNELS");
  if (asked == nullptr || *asked == '\0') return false;
  if (std::string_view(asked) != kPlain)
    throw UserError(
        fmt::format("MOELAB_KERNELS={}: only plain is known; without it the fastest kernels are used that "
                    "are right on this GPU",
                    asked));
  return true;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 16> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%F", &local)};
}

// Of any size.
KernelKey machine_key(c10::Device gpu) {
  return {gpu_model(gpu), compute_capability(gpu),
          fmt::format("{} CUDA {}", nvidia_driver(), driver_cuda_version()), build_name()};
}

std::string failures_text(const KernelRecord& record) {
  std::string text;
  for (const TriedVariant& one : record.tried)
    if (!one.failure.empty()) text += fmt::format("; {} {} is out: {}", one.op, one.variant, one.failure);
  if (!record.passed()) text += "; scripts/gpu_check.sh says more, run.device=cpu goes on without the GPU";
  return text;
}

std::string qualified(const Settings& settings, c10::Device gpu) {
  try {
    const KernelRecord record = qualify(settings, gpu, /*anew=*/false, kPatience);
    const KernelChoice choice = fastest_variants(record.tried);
    use_kernels(choice);
    return fmt::format("kernels: {} (qualified here on {}){}", kernels_text(choice), record.date,
                       failures_text(record));
  } catch (const UserError& error) {
    use_kernels({});
    return fmt::format("kernels: plain ({})", error.what());
  }
}

}  // namespace

void set_qualifying_program(const std::string& path) { qualifying_program() = path; }

ExpertSizes expert_sizes(const Settings& s) {
  const int64_t row = s.train.tokens_per_device > 0 ? s.train.tokens_per_device : s.train.sequence;
  const bool captured = s.model.dispatch == Dispatch::dropless && captures_step(s.memory.cuda_graphs);
  return {.tokens = s.train.micro_batch * row,
          .width = s.model.d_model,
          .experts = s.model.experts / s.parallel.expert,
          .per_token = s.model.dense() ? 1 : s.model.experts_per_token,
          .expert_width = s.model.d_expert / s.parallel.tensor,
          .type = compute_type(s.precision),
          .fp8 = s.precision.compute == ComputePrecision::fp8,
          .captured = captured};
}

KernelKey kernel_key(const Settings& settings, c10::Device gpu) {
  KernelKey key = machine_key(gpu);
  key.sizes = expert_sizes(settings);
  return key;
}

std::string qualification_date(c10::Device gpu) {
  return date_of_qualification(cache_folder(), machine_key(gpu));
}

KernelRecord qualify(const Settings& settings, c10::Device gpu, bool anew, double patience) {
  const KernelKey key = kernel_key(settings, gpu);
  const std::filesystem::path folder = cache_folder();
  if (const auto known = anew ? std::nullopt : read_kernel_record(folder, key)) return *known;
  const KernelRecord record{try_in_workers(qualifying_program(), {gpu.index(), key.sizes}, patience),
                            today()};
  write_kernel_record(folder, key, record);
  return record;
}

std::string take_kernels(const Settings& settings, c10::Device device, const std::string* of_checkpoint) {
  if (!device.is_cuda()) return "";
  if (plain_is_asked_for()) {
    use_kernels({});
    return "kernels: plain (MOELAB_KERNELS)";
  }
  if (of_checkpoint != nullptr) {
    use_kernels_of(*of_checkpoint);
    return fmt::format("kernels: {} (the checkpoint's)", kernels_text(kernels_in_use()));
  }
  return qualifying_program().empty() ? "" : qualified(settings, device);
}

nlohmann::json kernels_json() { return kernels_in_use(); }

void use_kernels_of(const std::string& json) {
  try {
    use_kernels(parse_json(json, "kernels.json").get<KernelChoice>());
  } catch (const nlohmann::json::exception& error) {
    throw UserError(std::string("kernels.json: not a choice of kernels: ") + error.what());
  }
}

std::string kernels_text(const KernelChoice& choice) {
  std::string text;
  for (const auto& [op, variant] : choice) text += (text.empty() ? "" : ", ") + op + " " + variant;
  return text;
}

}  // namespace moelab
