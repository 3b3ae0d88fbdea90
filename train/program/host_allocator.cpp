#include "train/program/host_allocator.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "moe/settings/error.h"
#include "train/settings/convert.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;

// Set when the program is restarted, so that it restarts at most once.
constexpr const char* kStartedAnew = "MOELAB_HOST_ALLOCATOR_PRELOADED";

struct Library {
  const char *file, *package;
};

Library library_of(HostAllocator choice) {
  if (choice == HostAllocator::jemalloc) return {"libjemalloc.so.2", "libjemalloc2"};
  return {"libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"};
}

bool is_loaded(const char* file) {
  void* handle = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
  if (handle) dlclose(handle);
  return handle != nullptr;
}

// Searches the loader's folders; empty if the library is in none. Trying dlopen instead would fail: a running
// program has no room for the library's thread-local memory.
fs::path find_library(const char* file) {
  Dl_serinfo size{};
  void* program = dlopen(nullptr, RTLD_LAZY);
  if (dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0) return {};
  const auto memory = std::make_unique<std::byte[]>(size.dls_size);
  auto* folders = new (memory.get()) Dl_serinfo(size);
  if (dlinfo(program, RTLD_DI_SERINFOSIZE, folders) != 0 || dlinfo(program, RTLD_DI_SERINFO, folders) != 0)
    return {};
  for (unsigned i = 0; i < folders->dls_cnt; ++i) {
    const fs::path path = fs::path(folders->dls_serpath[i].dls_name) / file;
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return path;
  }
  return {};
}

}  // namespace

void use_host_allocator(HostAllocator choice, char** argv) {
  if (choice == HostAllocator::system) return;
  const Library library = library_of(choice);
  if (is_loaded(library.file)) return;
  const std::string key = "memory.host_allocator=" + value_text(choice) + ": ";
  if (std::getenv(kStartedAnew) != nullptr) {
    throw UserError(key + library.file + " does not load; reinstall the package " + library.package +
                    ", or set memory.host_allocator=system");
  }
  const fs::path path = find_library(library.file);
  if (path.empty()) {
    throw UserError(key + library.file + " is missing; install the package " + library.package +
                    " (apt-get install " + library.package + "), or set memory.host_allocator=system");
  }
  const char* others = std::getenv("LD_PRELOAD");
  const std::string preload = path.string() + (others ? std::string(":") + others : "");
  setenv("LD_PRELOAD", preload.c_str(), 1);
  setenv(kStartedAnew, "1", 1);
  execv("/proc/self/exe", argv);
  throw UserError(key + "the program cannot be started anew: " + std::strerror(errno));
}

}  // namespace moelab
