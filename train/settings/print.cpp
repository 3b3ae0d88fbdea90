#include "train/settings/print.h"

#include "train/settings/convert.h"
#include "train/settings/for_each_field.h"

namespace moelab {
namespace {

template <class T>
std::string in_yaml(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) return yaml_text(value);
  return value_text(value);
}

template <class T>
constexpr bool is_enum_list = false;
template <class T>
constexpr bool is_enum_list<std::vector<T>> = std::is_enum_v<T>;

template <class T>
nlohmann::ordered_json in_json(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return value_text(value);
  } else if constexpr (is_enum_list<T>) {
    nlohmann::ordered_json names = nlohmann::ordered_json::array();
    for (const auto& one : value) names.push_back(value_text(one));
    return names;
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return value.count;
  } else if constexpr (std::is_same_v<T, LossFactor>) {
    if (value.dynamic) return "dynamic";
    return value.fixed;
  } else {
    return value;
  }
}

}  // namespace

std::string print_settings(const Settings& settings) {
  std::string text;
  std::string_view group;
  for_each_field(settings, [&](const Field& field, const auto& value) {
    if (field.group != group) text += std::string(field.group) + ":\n";
    group = field.group;
    text += "  " + std::string(field.name) + ": " + in_yaml(value) + "\n";
  });
  return text;
}

nlohmann::ordered_json settings_json(const Settings& settings) {
  nlohmann::ordered_json json;
  for_each_field(settings, [&](const Field& field, const auto& value) {
    json[std::string(field.group)][std::string(field.name)] = in_json(value);
  });
  return json;
}

std::map<std::string, std::string> setting_texts(const Settings& settings) {
  std::map<std::string, std::string> texts;
  for_each_field(settings,
                 [&](const Field& field, const auto& value) { texts[field.key()] = value_text(value); });
  return texts;
}

}  // namespace moelab
