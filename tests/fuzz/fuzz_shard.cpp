// Whatever the bytes, a shard is refused with a UserError or every token of it is within the vocabulary.
#include <cstdlib>
#include <vector>

#include "moe/settings/error.h"
#include "tests/fuzz/scratch_file.h"
#include "train/data/shard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kVocab = 300;
  static const ScratchFile file;
  file.hold(data, size);
  try {
    const moelab::Shard shard(file.path(), kVocab);
    std::vector<int64_t> tokens(static_cast<size_t>(shard.size()));
    shard.copy(0, tokens);
    for (const int64_t token : tokens) {
      if (token < 0 || token >= kVocab) std::abort();
    }
  } catch (const moelab::UserError&) {
  }
  return 0;
}
