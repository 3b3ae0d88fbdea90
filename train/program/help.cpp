#include "train/program/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <sstream>
#include <vector>

#include "moe/settings/error.h"
#include "train/settings/assign.h"
#include "train/settings/options.h"
#include "train/settings/presets/presets.h"

namespace moelab {
namespace {

constexpr size_t kWidth = 110;   // columns of a screen
constexpr size_t kOptions = 30;  // of them before a description

std::string wrapped(const std::string& text, size_t width, const std::string& indent) {
  std::istringstream words(text);
  std::string lines;
  size_t column = 0;
  for (std::string word; words >> word;) {
    if (column > 0 && column + 1 + word.size() > width) {
      lines += "\n" + indent;
      column = 0;
    }
    lines += (column > 0 ? " " : "") + word;
    column += word.size() + (column > 0 ? 1 : 0);
  }
  return lines;
}

std::string names(const std::string& heading, const std::vector<Preset>& presets) {
  std::string text = heading;
  for (const Preset& preset : presets)
    text += (&preset == presets.data() ? " " : ", ") + std::string(preset.name);
  return wrapped(text, kWidth - 2, "  ") + "\n";
}

std::string listed(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

std::vector<std::string> used_groups(UsedSettings used) {
  std::vector<std::string> groups;
  for (const std::string& key : setting_keys()) {
    const std::string group = key.substr(0, key.find('.'));
    if (uses(used, key) && (groups.empty() || groups.back() != group)) groups.push_back(group);
  }
  return groups;
}

std::optional<HelpRequest> help_request(int argc, const char* const* argv) {
  if (argc > 1 && std::string_view(argv[1]) == "help") return HelpRequest{.command = argc > 2 ? argv[2] : ""};
  const std::string command = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--help=")) return HelpRequest{command, std::string(word.substr(7))};
    if (word != "--help" && word != "-h") continue;
    const bool topic =
        i + 1 < argc && std::string_view(argv[i + 1]).find_first_of("-=") == std::string_view::npos;
    return HelpRequest{command, topic ? argv[i + 1] : ""};
  }
  return std::nullopt;
}

bool uses(UsedSettings used, std::string_view key) {
  if (used == kAllSettings) return true;
  std::istringstream words{std::string(used)};
  for (std::string word; words >> word;)
    if (key == word || (word.ends_with('.') && key.starts_with(word))) return true;
  return false;
}

std::string settings_overview(UsedSettings used, bool takes_preset) {
  if (used.empty()) return "";
  std::string text;
  if (uses(used, "model.preset")) text += names("Models:", model_presets());
  if (takes_preset) text += names("Presets:", run_presets());
  return text + "Settings, as KEY=VALUE; --help GROUP lists a group of them, --help all everything:\n  " +
         wrapped(listed(used_groups(used)), kWidth - 2, "  ");
}

std::string settings_topic(UsedSettings used, const std::string& topic) {
  if (used.empty() && topic == "all") return "";
  std::vector<std::string> topics = used_groups(used);
  topics.emplace_back("all");
  const bool known = std::find(topics.begin(), topics.end(), topic) != topics.end();
  if (topics.size() == 1) throw UserError("--help " + topic + ": this command takes no settings");
  if (!known)
    throw UserError("--help " + topic + ": no group of settings that this command reads" +
                    did_you_mean(topic, topics) + "; there are " + listed(topics));
  const bool all = topic == "all";
  std::string text = settings_help(
      [&](const std::string& key) { return uses(used, key) && (all || key.starts_with(topic + ".")); });
  if (uses(used, "model.preset") && (all || topic == "model")) text += "\n" + models_help();
  if (uses(used, "run.preset") && (all || topic == "run")) text += "\n" + run_presets_help();
  return text;
}

std::string OptionList::make_option_opts(const CLI::Option* option) const {
  if (option->get_type_size() == 0) return "";
  const std::string type = option->get_type_name();
  const std::string value = option->get_default_str();
  return " " + type.substr(0, type.find(':')) + (value.empty() ? "" : "=" + value) +
         (option->get_required() ? " (required)" : "") +
         (option->get_expected_max() == CLI::detail::expected_max_vector_size ? " ..." : "");
}

std::string OptionList::make_option_desc(const CLI::Option* option) const {
  return wrapped(option->get_description(), kWidth - kOptions, "");
}

}  // namespace moelab
