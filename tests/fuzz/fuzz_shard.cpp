// Whatever the bytes, a shard is refused with a UserError or every token of it is within the vocabulary.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "moe/settings/error.h"
#include "train/data/shard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kVocab = 300;
  static const int file = memfd_create("shard.bin", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  try {
    const moelab::Shard shard(path, kVocab);
    std::vector<int64_t> tokens(static_cast<size_t>(shard.size()));
    shard.copy(0, tokens);
    for (const int64_t token : tokens) {
      if (token < 0 || token >= kVocab) std::abort();
    }
  } catch (const moelab::UserError&) {
  }
  return 0;
}
