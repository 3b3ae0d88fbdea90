// How long a waiting OpenMP thread spins before it sleeps. libgomp spins 300,000 times, for milliseconds.
// Beside other processes that time is taken from the threads that still compute.
//
// libgomp asks getenv for the number when it is loaded, before main. The loader prefers the getenv of the
// program to libc's: this one answers as libc's does, with a default for GOMP_SPINCOUNT. What a user has set
// is left alone.
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
