#pragma once
#include <string>
#include <string_view>
#include <type_traits>

#include "moe/settings/visitor.h"

namespace moelab {

// What is known about a setting apart from its value.
struct Field {
  std::string_view group, name, help;
  Constraint constraint;

  std::string key() const { return std::string(group) + "." + std::string(name); }
};

// The visitor behind for_each_field.
template <class Function>
struct FieldWalk {
  Function& f;
  std::string_view in = {};

  template <class T>
  void field(std::string_view name, T& value, std::string_view help, Constraint constraint = {}) {
    f(Field{in, name, help, constraint}, value);
  }
  template <class Group>
  void group(std::string_view name, Group& group) {
    in = name;
    std::remove_const_t<Group>::visit(group, *this);
  }
};

// Calls f(const Field&, T& value) for every setting of `settings` (const or not), in declaration order.
template <class SettingsType, class Function>
void for_each_field(SettingsType& settings, Function f) {
  FieldWalk<Function> walk{f};
  std::remove_const_t<SettingsType>::visit(settings, walk);
}

}  // namespace moelab
