// Whatever the text, a settings file is refused with a UserError or its values are taken.
#include <cstdlib>
#include <string>

#include "moe/settings/error.h"
#include "train/settings/assign.h"
#include "train/settings/yaml_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    moelab::Settings settings;
    for (const moelab::Assignment& assignment : moelab::read_yaml(text, "file")) {
      moelab::assign(settings, assignment);
    }
  } catch (const moelab::UserError& error) {
    if (std::string(error.what()).empty()) std::abort();
  }
  return 0;
}
