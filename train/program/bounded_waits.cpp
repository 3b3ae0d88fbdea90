// Limits how long a waiting OpenMP thread spins before it sleeps. libgomp's default is 300,000 spins, several
// milliseconds. When other processes run too, spinning takes that time from threads that still compute.
//
// libgomp calls getenv for the number when it is loaded, before main. The loader prefers a getenv in the
// program to libc's, so this one replaces it: it works as libc's does, with a default for GOMP_SPINCOUNT.
// Values set by the user are kept.
#include <unistd.h>

#include <cstring>

namespace {

char default_spins[] = "6500";

char* value_of(const char* name) {
  const size_t length = std::strlen(name);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') return *entry + length + 1;
  }
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) char* getenv(const char* name) noexcept {
  char* const value = value_of(name);
  const bool unset = value == nullptr && std::strcmp(name, "GOMP_SPINCOUNT") == 0;
  return unset && value_of("OMP_WAIT_POLICY") == nullptr ? default_spins : value;
}
