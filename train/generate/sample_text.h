#pragma once
#include <string>

namespace moelab {

struct SampleText {
  std::string prompt, text;
};

}  // namespace moelab
