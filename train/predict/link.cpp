#include "train/predict/link.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "moe/settings/error.h"
#include "train/predict/cost_model.h"
#include "train/settings/assign.h"

namespace moelab {
namespace {

using Json = nlohmann::json;

double positive(const Json& entry, const char* key, const std::string& link) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_number() || found->get<double>() <= 0)
    throw UserError("devices.json: link " + link + ": " + key + " is missing or not above 0");
  return found->get<double>();
}

const std::vector<Link>& links() {
  static const std::vector<Link> all = parse_links(kDevicesText);
  return all;
}

// Seconds a byte of a rate such as 25Gbit or 500Mbit; none if the text is not a rate above 0.
std::optional<double> seconds_per_byte(const std::string& text) {
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  const std::string unit(end, text.data() + text.size());
  const double bits = unit == "Gbit" ? 1e9 : unit == "Mbit" ? 1e6 : 0;
  if (error != std::errc() || !(rate * bits > 0) || !std::isfinite(rate)) return std::nullopt;
  return 8 / (rate * bits);
}

// The named network whose rate is the nearest.
Link network_like(double seconds) {
  const auto distance = [&](const Link& one) { return std::abs(std::log(one.seconds_per_byte / seconds)); };
  std::optional<Link> nearest;
  for (const Link& one : links())
    if (seconds_per_byte(one.name) && (!nearest || distance(one) < distance(*nearest))) nearest = one;
  return nearest.value();
}

}  // namespace

std::vector<Link> parse_links(const std::string& devices) {
  const Json json = Json::parse(devices, nullptr, false);
  if (json.is_discarded() || json.value("schema", 0) != 1 || !json.contains("links"))
    throw UserError("devices.json: expected JSON of schema 1 with links");
  std::vector<Link> all;
  for (const auto& [name, entry] : json["links"].items()) {
    all.push_back({.name = name,
                   .about = entry.value("about", ""),
                   .seconds_per_byte = 1e-9 / positive(entry, "gigabytes_per_second", name),
                   .latency = 1e-6 * positive(entry, "microseconds", name)});
  }
  return all;
}

std::vector<std::string> link_names() {
  std::vector<std::string> names;
  for (const Link& one : links()) names.push_back(one.name);
  return names;
}

Link find_link(const std::string& name_or_rate) {
  for (const Link& one : links())
    if (one.name == name_or_rate) return one;
  const std::optional<double> rate = seconds_per_byte(name_or_rate);
  if (!rate) {
    std::string names;
    for (const Link& one : links()) names += (names.empty() ? "" : ", ") + one.name;
    throw UserError("--link " + name_or_rate +
                    ": no such link; give a rate such as 25Gbit or 500Mbit, or one of " + names +
                    did_you_mean(name_or_rate, link_names()));
  }
  Link network = network_like(*rate);
  network.about = "a network of " + name_or_rate + ", otherwise like " + network.name;
  network.name = name_or_rate;
  network.seconds_per_byte = *rate;
  return network;
}

}  // namespace moelab
