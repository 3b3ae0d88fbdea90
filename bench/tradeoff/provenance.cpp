#include "bench/tradeoff/provenance.h"

#include <unistd.h>

#include <thread>

#include "bench/tradeoff/outcome.h"
#include "bench/tradeoff/process.h"
#include "train/io/proc_file.h"

namespace moelab::tradeoff {
namespace fs = std::filesystem;
namespace {

constexpr double kPatience = 60;  // seconds

Json machine() {
  // In whole GiB: the kernel's own share differs from boot to boot, but the machine is the same.
  constexpr int64_t gib = int64_t{1} << 30;
  const int64_t usable = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const int64_t memory = (usable + gib / 2) / gib * gib;
  const std::string gpu = first_gpu_name();
  return {{"cpu", cpu_name()},
          {"class", cpu_class()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", memory},
          {"gpu", gpu.empty() ? Json(nullptr) : Json(gpu)}};
}

// `text`: what --version prints, "moelab 0.1.0 (commit 0123456789ab)" or "… (commit 0123456789ab, modified)".
Provenance parse_version(const std::string& text) {
  constexpr std::string_view key = "(commit ", modified = ", modified)";
  const size_t begin = text.find(key), end = text.find_first_of(",)", begin);
  if (end == text.npos) return {"unknown", false, machine()};
  return {text.substr(begin + key.size(), end - begin - key.size()),
          text.compare(end, modified.size(), modified) == 0, machine()};
}

}  // namespace

Provenance provenance(const fs::path& program, const fs::path& scratch) {
  run_process({program.string(), "--version"}, scratch, kPatience);
  return parse_version(file_text(scratch));
}

}  // namespace moelab::tradeoff
