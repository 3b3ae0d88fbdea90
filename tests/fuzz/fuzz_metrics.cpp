// Whatever metrics.jsonl holds, a run that resumes keeps whole lines of its beginning, up to its own step.
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/scratch_file.h"
#include "train/io/json_lines.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ScratchFile file;
  file.hold(data, size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string kept = moelab::json_lines_up_to(file.path(), 7);
  const std::string_view whole = std::string_view(kept).substr(0, std::min(kept.size(), size));
  if (!text.starts_with(whole) || kept.size() > size + 1 || (!kept.empty() && kept.back() != '\n'))
    std::abort();
  moelab::last_step(file.path());
  return 0;
}
