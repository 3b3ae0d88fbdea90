#pragma once
#include <string>
#include <string_view>

#include "moe/settings/error.h"
#include "train/settings/convert.h"

namespace moelab {

// Throws UserError with `message` unless `holds`.
inline void require(bool holds, const std::string& message) {
  if (!holds) throw UserError(message);
}

// A setting as error messages show it: "key=value".
template <class T>
std::string named(std::string_view key, const T& value) {
  return std::string(key) + "=" + value_text(value);
}

}  // namespace moelab
