#include "train/program/completion.h"

#include <cctype>
#include <sstream>
#include <vector>

#include "train/settings/assign.h"
#include "train/settings/options.h"
#include "train/settings/presets/presets.h"

namespace moelab {
namespace {

using Words = std::vector<std::string>;

// One branch of a shell's `case`, which prints words.
std::string branch(const std::string& pattern, const Words& words) {
  std::string text = "    '" + pattern + "') echo '";
  for (const std::string& word : words) text += (&word == words.data() ? "" : " ") + word;
  return text + "' ;;\n";
}

// A shell function that prints the words for its argument; it fails where there is no branch.
std::string function(const std::string& name, const std::string& branches) {
  return name + "() {\n  case $1 in\n" + branches + "    *) return 1 ;;\n  esac\n}\n";
}

// The alternatives of a type such as latest|auto|PATH that are to be written as they are.
Words names_in_type(const std::string& type) {
  Words names;
  std::istringstream alternatives(type.substr(0, type.find(':')));
  for (std::string one; std::getline(alternatives, one, '|');)
    if (!one.empty() && std::isupper(static_cast<unsigned char>(one[0])) == 0) names.push_back(one);
  return names;
}

Words names_for(const CLI::Option& option) {
  const std::string name = option.get_name();
  if (name == "--config" || name == "--model") return names_of(model_presets());
  if (name == "--preset") return names_of(run_presets());
  return names_in_type(option.get_type_name());
}

struct Branches {
  std::string commands, options, settings, names;
};

void add_command(Branches& all, const CLI::App& command, UsedSettings used) {
  Words options = {"--help"};
  const std::string& name = command.get_name();
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_name() == "--help" || option->get_group().empty()) continue;
    if (option->get_positional()) {  // the first word behind the command
      const Words words = names_for(*option);
      if (!words.empty()) all.names += branch(name + " " + name, words);
      continue;
    }
    for (const std::string& one : option->get_lnames()) {
      options.push_back("--" + one);
      if (option->get_type_size() != 0) all.names += branch(name + " --" + one, names_for(*option));
    }
  }
  all.options += branch(name, options);
  Words keys, topics = used_groups(used);
  for (const std::string& key : setting_keys())
    if (uses(used, key)) keys.push_back(key + "=");
  topics.emplace_back("all");
  all.names += branch(name + " --help", topics);
  if (!keys.empty()) all.settings += branch(name, keys);
}

constexpr const char* kBash = R"(
_moelab() {
  local line=${COMP_LINE:0:COMP_POINT} words list prefix=''
  read -r -a words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=('')
  local word=${words[-1]} before=${words[-2]} command=${words[1]-}
  if ((${#words[@]} == 2)); then
    list=$(_moelab_commands program)
  elif list=$(_moelab_names "$command $before"); then
    :
  elif [[ $word == *=* ]]; then
    local key=${word%%=*}
    [[ $word != --* ]] || key="$command $key"
    list=$(_moelab_names "$key")
    # the shell may take what stands behind the = for a word of its own
    [[ $COMP_WORDBREAKS == *=* ]] || prefix=${word%%=*}=
    word=${word#*=}
  elif [[ $word == -* ]]; then
    list=$(_moelab_options "$command")
  else
    list=$(_moelab_settings "$command") && compopt -o nospace 2>/dev/null
  fi
  mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "$list" -- "$word")
}
complete -o default -F _moelab moelab
)";

constexpr const char* kZsh = R"(
_moelab() {
  local word=$words[CURRENT] before=$words[CURRENT-1] command=$words[2] list key
  local -a end
  if ((CURRENT == 2)); then
    list=$(_moelab_commands program)
  elif list=$(_moelab_names "$command $before"); then
    :
  elif [[ $word == *=* ]]; then
    key=${word%%=*}
    [[ $word != --* ]] || key="$command $key"
    list=$(_moelab_names "$key")
    compset -P '*='
  elif [[ $word == -* ]]; then
    list=$(_moelab_options "$command")
  else
    list=$(_moelab_settings "$command") && end=(-S '')
  fi
  compadd "${end[@]}" -- ${=list} || _files
}
if [[ $funcstack[1] == _moelab ]]; then _moelab "$@"; else compdef _moelab moelab; fi
)";

}  // namespace

std::string completion_script(const std::string& shell, const CLI::App& program,
                              const std::function<UsedSettings(const std::string& command)>& used) {
  Branches all;
  Words commands;
  for (const CLI::App* command : program.get_subcommands(nullptr)) {
    commands.push_back(command->get_name());
    add_command(all, *command, used(command->get_name()));
  }
  commands.insert(commands.end(), {"--help", "--version"});
  for (const SettingNames& setting : settings_with_names()) all.names += branch(setting.key, setting.names);
  const bool zsh = shell == "zsh";
  return std::string(zsh ? "#compdef moelab\n" : "") +
         "# Completes moelab's command lines; written by moelab completion " + shell + ".\n" +
         function("_moelab_commands", branch("program", commands)) +
         function("_moelab_options", all.options) + function("_moelab_settings", all.settings) +
         function("_moelab_names", all.names) + (zsh ? kZsh : kBash);
}

}  // namespace moelab
