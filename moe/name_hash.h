#pragma once
#include <cstdint>
#include <string_view>

namespace moelab {

// FNV-1a of a parameter's name. It seeds the parameter's random numbers, so that they depend on nothing that
// was made before.
constexpr uint64_t name_hash(std::string_view name, uint64_t seed = 0) {
  uint64_t hash = 1469598103934665603ull ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace moelab
