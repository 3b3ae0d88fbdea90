// The program. Exit codes: 0 success, 2 a user's mistake, 3 the memory budget cannot be met, 1 a defect in
// the program, a GPU that failed, or another rank that died.
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string_view>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "train/parallel/c10d_communicator.h"
#include "train/parallel/ranks.h"
#include "train/predict/techniques/techniques.h"
#include "train/program/arguments.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/device_choice.h"
#include "train/program/host_allocator.h"
#include "train/program/qualify/kernel_choice.h"
#include "train/settings/print.h"
#include "train/settings/shell_line.h"

namespace moelab {
namespace {

// Ranks have the same command line, so rank 0 speaks for all of what is the same to each.
bool speaks_for_all() {
  const char* const rank = std::getenv("RANK");
  return rank == nullptr || std::string_view(rank) == "0";
}

void print_mistake(const UserError& error) {
  if (speaks_for_all() || dynamic_cast<const RankError*>(&error) != nullptr)
    std::cerr << "moelab: " << error.what() << "\n";
}

void print_lost_rank(const LostRank& error) {
  const char* const rank = std::getenv("RANK");
  std::cerr
      << "moelab: rank " << (rank != nullptr ? rank : "0") << ": " << error.what_without_backtrace()
      << "; look for what that rank said last, and go on from the last checkpoint with --resume latest\n";
}

// The settings of a command with the device that it would have; what is to say of that goes to stderr.
Settings settings_here(const Arguments& arguments) {
  if (arguments.command == Command::estimate) return predicted_on(arguments.settings).settings;
  if (arguments.settings.run.device != DeviceChoice::automatic) return arguments.settings;
  const ChosenDevice chosen = choose_device(DeviceChoice::automatic);
  if (!chosen.note.empty()) std::cerr << chosen.note << "\n";
  return on_device(arguments.settings, chosen.device);
}

int run(const Arguments& arguments, const std::string& command) {
  if (!arguments.filled.empty() && speaks_for_all()) std::cerr << arguments.filled << "\n";
  if (arguments.print_config) {
    std::cout << print_settings(settings_here(arguments));
    return 0;
  }
  switch (arguments.command) {
    case Command::train:
      return train_command(arguments.settings, {arguments.resume, {}, arguments.overwrite, arguments.given},
                           command);
    case Command::eval:
      return eval_command(arguments.settings, arguments.checkpoint, command);
    case Command::generate:
      return generate_command(arguments.generate);
    case Command::chat:
      return chat_command(arguments.generate);
    case Command::qualify:
      return qualify_command(arguments.settings, arguments.qualify);
    case Command::techniques:
      if (arguments.pairs) return pairs_command(arguments.model);
      std::cout << (arguments.json ? techniques_json() : techniques_text());
      return 0;
    case Command::completion:
      std::cout << completion_script(arguments.shell);
      return 0;
    case Command::import_model:
      return import_command(arguments.from, arguments.to);
    case Command::export_model:
      return export_command(arguments.from, arguments.to);
    case Command::plan:
      return plan_command(arguments.settings, arguments.plan);
    case Command::fits:
      return fits_command(arguments.model);
    case Command::estimate:
      break;
  }
  return estimate_command(arguments.settings, arguments.json, arguments.ranks);
}

// The exit code. What goes wrong is said on stderr.
int run(int argc, char** argv) {
  try {
    install_allocators();
    set_qualifying_program("/proc/self/exe");
    if (argc < 2) {
      std::cerr << program_help();
      return 2;
    }
    const std::optional<Arguments> arguments = parse_arguments(argc, argv);
    if (arguments && arguments->computes())
      use_host_allocator(arguments->settings.memory.host_allocator, argv);
    return arguments ? run(*arguments, shell_line({argv, argv + argc})) : 0;
  } catch (const UserError& error) {
    print_mistake(error);
    return 2;
  } catch (const LostRank& error) {
    print_lost_rank(error);
    return 1;
  } catch (const c10::AcceleratorError& error) {
    std::cerr << "moelab: the GPU failed: " << error.what_without_backtrace()
              << "\nmoelab: scripts/gpu_check.sh finds the kernel that fails; run.device=cpu goes on without "
                 "the GPU "
                 "(moelab train: with --resume latest from the last checkpoint)\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "moelab: internal error: " << error.what() << "\n";
    return 1;
  }
}

// Without LibTorch's exit, which takes back its thousands of operators one by one: a third of a short
// command's time. Tools that trace a GPU write their files at exit, so that a process that has loaded CUDA's
// driver takes it. LeakSanitizer, which looks then, is for the test programs.
[[noreturn]] void leave(int code) {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr) std::exit(code);
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace
}  // namespace moelab

int main(int argc, char** argv) {
  // Makes exceeding a file-size limit (ulimit -f) a failed write, like a full disk, instead of ending the
  // program.
  std::signal(SIGXFSZ, SIG_IGN);
  moelab::leave(moelab::run(argc, argv));
}
