#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/operator/gpu.h"
#include "moe/settings/error.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/device_choice.h"
#include "train/program/qualify/kernel_choice.h"
#include "train/program/qualify/qualify_json.h"
#include "train/program/qualify/worker.h"

namespace moelab {
namespace {

void print_json(const std::string& gpu, const KernelRecord& record) {
  std::cout << nlohmann::json{{"schema", 1},
                              {"gpu", gpu},
                              {"date", record.date},
                              {"kernels", fastest_variants(record.tried)},
                              {"tried", tried_json(record.tried)}}
                   .dump(1)
            << "\n";
}

void print_text(const std::string& gpu, const KernelRecord& record) {
  std::cout << fmt::format("{}: kernels beside LibTorch's operators\n\n{:<17}{:<9}{:>9}  {}\n", gpu,
                           "operator", "variant", "ms", "result");
  for (const TriedVariant& one : record.tried)
    std::cout << fmt::format("{:<17}{:<9}{:>9.3f}  {}\n", one.op, one.variant, one.milliseconds,
                             one.failure.empty() ? "agrees" : one.failure);
  std::cout << "\nkernels: " << kernels_text(fastest_variants(record.tried)) << "\n";
}

}  // namespace

int qualify_command(const Settings& given, const QualifyCall& call) {
  if (given.run.device == DeviceChoice::cpu)
    throw UserError("run.device=cpu: a CPU has no kernels to choose from, so there is nothing to qualify");
  const ChosenDevice chosen = choose_device(DeviceChoice::cuda);
  if (!call.worker.empty()) {
    run_worker(call.worker);
    return 0;
  }
  const Settings settings = on_device(given, chosen.device);
  const KernelRecord record = qualify(settings, chosen.device, /*anew=*/true, call.patience);
  call.json ? print_json(gpu_model(chosen.device), record) : print_text(gpu_model(chosen.device), record);
  return 0;
}

}  // namespace moelab
