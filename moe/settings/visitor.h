#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Settings are plain structs. Each has one function
//
//   template <class Self, class Visitor>
//   static void visit(Self& self, Visitor& v) {
//     v.field("layers", self.layers, "number of transformer blocks", range(1, 1024));
//     …
//   }
//
// and everything that is known about a setting comes from it: default (the member's initialiser), YAML
// reading, key=value override, --help, --print-config and validation. Self is const for visitors that only
// read. A group of settings is visited by v.group("model", self.model).
//
// A visitor is any type with
//   template <class T> void field(std::string_view name, T& value, std::string_view help, Constraint = {});
//   template <class Group> void group(std::string_view name, Group& group);
// where T is (const) bool, int64_t, double, std::string, Bytes, an enum with enum_names(), std::vector of
// int64_t, double or such an enum, or a type that has overloads in train/settings/convert.h.
namespace moelab {

// The values that a number, or each element of a list, may take: a closed interval. Ignored for other types.
struct Constraint {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

constexpr Constraint range(double low, double high) { return {low, high}; }
constexpr Constraint at_least(double low) { return {low, std::numeric_limits<double>::infinity()}; }

// A number of bytes; written as 1500000, 12GB (10^9), 8GiB (2^30), 512MiB …; 0 means "none" where a setting
// says so.
struct Bytes {
  int64_t count = 0;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};

}  // namespace moelab
