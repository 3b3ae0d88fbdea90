#include "train/program/command_line_errors.h"

#include <algorithm>
#include <vector>

#include "moe/settings/error.h"
#include "train/predict/link.h"
#include "train/program/command_texts.h"
#include "train/settings/assign.h"
#include "train/settings/common_names.h"
#include "train/settings/convert.h"

namespace moelab {
namespace {

// Throws the UserError for a setting that is written as an option: --train.steps=5, or --steps, whose last
// part alone is named.
void refuse_dashes(const std::string& given, const std::string& option) {
  const std::string name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  const std::string common = by_common_name(name, setting_keys());
  std::string keys;
  for (const std::string& key : setting_keys()) {
    if (name.empty() || (key != name && key != common && !key.ends_with("." + name))) continue;
    const std::string value = given.size() > option.size() ? given.substr(option.size()) : "=VALUE";
    keys += (keys.empty() ? "" : " or ") + key + value;
  }
  if (!keys.empty()) throw UserError("command line: " + option + ": settings take no dashes; write " + keys);
}

}  // namespace

std::string one_of_commands() {
  std::string text = "expected one of";
  for (const CommandText& command : command_texts())
    text += std::string(&command == command_texts().data() ? " " : ", ") + command.name;
  return text;
}

void refuse_unknown(const CLI::App& app, const std::string& help) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  const std::string& given = extras[0];
  const std::string name = given.substr(0, given.find('='));
  const bool option = name.rfind('-', 0) == 0;
  if (option) refuse_dashes(given, name);
  std::vector<std::string> candidates;
  for (const CLI::Option* known : app.get_options())
    if (option && known->get_name().rfind("--", 0) == 0) candidates.push_back(known->get_name());
  for (const CommandText& command : command_texts())
    if (!option) candidates.emplace_back(command.name);
  const std::string shown = describe({Value::Kind::argument, name, {}, 0});
  throw UserError("command line: unknown " + std::string(option ? "option " : "command ") + shown +
                  did_you_mean(name, candidates) + " (see " + help + ")");
}

void check_links(const PlanCall& call) {
  if (!call.link.empty()) find_link(call.link);
  if (!call.network.empty()) find_link(call.network);
  const std::string machines = "--machines " + std::to_string(call.machines);
  if (call.ranks % call.machines != 0)
    throw UserError(machines + " does not divide --ranks " + std::to_string(call.ranks) +
                    "; each machine has equally many");
  if (call.machines > 1 && call.network.empty())
    throw UserError(machines + " needs --network, what connects them, such as 400Gbit");
  if (call.machines == 1 && !call.network.empty())
    throw UserError("--network " + call.network +
                    " connects machines, and there is one; say how many with --machines");
  if (call.ranks == 1 && !call.link.empty())
    throw UserError("--link " + call.link + " connects ranks, and there is one; say how many with --ranks");
  if (call.ranks > 1 && call.link.empty())
    throw UserError("--ranks " + std::to_string(call.ranks) +
                    " needs --link, what connects the ranks, such as 100Gbit or nvlink4");
}

}  // namespace moelab
