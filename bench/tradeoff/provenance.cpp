#include "bench/tradeoff/provenance.h"

#include <unistd.h>

#include <optional>
#include <thread>

#include "bench/tradeoff/outcome.h"
#include "bench/tradeoff/process.h"
#include "moe/settings/error.h"
#include "train/files/proc_file.h"

namespace moelab::tradeoff {
namespace fs = std::filesystem;
namespace {

constexpr double kPatience = 60;  // seconds

Json machine() {
  // In whole GiB: what the kernel keeps for itself differs from boot to boot, and the machine is the same.
  constexpr int64_t gib = int64_t{1} << 30;
  const int64_t usable = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const int64_t memory = (usable + gib / 2) / gib * gib;
  const std::string gpu = first_gpu_name();
  return {{"cpu", cpu_name()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", memory},
          {"gpu", gpu.empty() ? Json(nullptr) : Json(gpu)}};
}

}  // namespace

Provenance provenance(const fs::path& program, const fs::path& scratch) {
  const std::string folder = fs::absolute(program).parent_path().string();
  // What git answers; nothing where it fails, is not installed, or this is no checkout.
  const auto git = [&](std::vector<std::string> words) -> std::optional<std::string> {
    words.insert(words.begin(), {"git", "-C", folder});
    try {
      if (run_process(words, scratch, kPatience).code != 0) return std::nullopt;
    } catch (const UserError&) {
      return std::nullopt;
    }
    return file_text(scratch);
  };
  const std::optional<std::string> commit = git({"rev-parse", "--short=12", "HEAD"});
  if (!commit) return {"unknown", false, machine()};
  const auto changes =
      git({"status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results"});
  return {commit->substr(0, commit->find('\n')), !changes || !changes->empty(), machine()};
}

}  // namespace moelab::tradeoff
