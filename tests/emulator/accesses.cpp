// The kernels are compiled with -fsanitize=thread. The calls that this puts before their accesses end here.
#include <cstddef>

#include "tests/emulator/races.h"
#include "tests/emulator/traffic.h"

namespace {

void accessed(const void* address, size_t bytes, bool writes, const void* where) {
  moelab::emulator::races::access(address, bytes, writes, false, where);
  moelab::emulator::traffic::access(address, bytes, writes, where);
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {

#define MOELAB_ACCESS(bytes)                                                                         \
  void __tsan_read##bytes(const void* p) { accessed(p, bytes, false, __builtin_return_address(0)); } \
  void __tsan_write##bytes(const void* p) { accessed(p, bytes, true, __builtin_return_address(0)); } \
  void __tsan_unaligned_read##bytes(const void* p) {                                                 \
    accessed(p, bytes, false, __builtin_return_address(0));                                          \
  }                                                                                                  \
  void __tsan_unaligned_write##bytes(const void* p) { accessed(p, bytes, true, __builtin_return_address(0)); }
MOELAB_ACCESS(1)
MOELAB_ACCESS(2)
MOELAB_ACCESS(4)
MOELAB_ACCESS(8)
MOELAB_ACCESS(16)
#undef MOELAB_ACCESS

void __tsan_read_range(const void* p, size_t bytes) {
  accessed(p, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(const void* p, size_t bytes) {
  accessed(p, bytes, true, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
