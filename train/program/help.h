#pragma once
#include <CLI/Formatter.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Help in layers: a command's own options in one screen, one group of settings, or everything.
namespace moelab {

// `moelab [COMMAND] --help [TOPIC]`, or -h, or `moelab help [COMMAND]`.
struct HelpRequest {
  std::string command = {};  // empty: of the program
  std::string topic = {};    // a group of settings ("model"), "all", or empty: the command's own options
};

// None: the command line does not ask for help.
std::optional<HelpRequest> help_request(int argc, const char* const* argv);

// What --help says of itself.
inline constexpr const char* kHelpHelp = "show this help; with the name of a group, or all: its settings";

// Settings that a command reads: keys and beginnings of keys ("model.") with blanks between; empty: none.
using UsedSettings = std::string_view;
inline constexpr UsedSettings kAllSettings = "*";
bool uses(UsedSettings used, std::string_view key);
// The groups that these are in, in order: "model", "train", …
std::vector<std::string> used_groups(UsedSettings used);

// The end of a command's first screen: named models, presets where the command takes one, and the groups of
// the settings used.
std::string settings_overview(UsedSettings used, bool takes_preset);

// The settings of the group `topic`, or of all groups, as far as they are used, with the table of models or
// presets beside the setting that takes them. Throws UserError for another topic.
std::string settings_topic(UsedSettings used, const std::string& topic);

// Lists options without what CLI11 adds for programmers, and wraps long descriptions.
class OptionList : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
};

}  // namespace moelab
