// Whatever the bytes, a manifest is refused with a UserError or names files of its own folder alone; what is
// accepted can be written again and reads the same. The input is a manifest's body: a right checksum is put
// before it, which no fuzzer guesses.
#include <cstdlib>
#include <string>

#include "moe/settings/error.h"
#include "train/checkpoint/hash.h"
#include "train/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  const std::string hash = moelab::xxh3_hex(std::as_bytes(std::span(body)));
  try {
    const moelab::Manifest manifest =
        moelab::parse_manifest(R"({"xxh3_128":")" + hash + R"(","body":)" + body + "}\n", "file");
    for (const auto& [name, file] : manifest.files) {
      if (name.empty() || name == ".." || name.find('/') != std::string::npos) std::abort();
    }
    const std::string written = moelab::manifest_text(manifest);
    if (moelab::manifest_text(moelab::parse_manifest(written, "again")) != written) std::abort();
  } catch (const moelab::UserError&) {
  }
  return 0;
}
