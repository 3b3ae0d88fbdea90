#include "train/program/arguments.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include "moe/settings/error.h"
#include "train/checkpoint/huggingface/convert.h"
#include "train/parallel/layout.h"
#include "train/parallel/world.h"
#include "train/predict/cost_model.h"
#include "train/predict/fill_card.h"
#include "train/predict/gpu.h"
#include "train/predict/link.h"
#include "train/predict/plan_device.h"
#include "train/program/command_line_errors.h"
#include "train/program/command_texts.h"
#include "train/program/completion.h"
#include "train/program/help.h"
#include "train/program/record/build_commit.h"
#include "train/settings/assign.h"
#include "train/settings/convert.h"
#include "train/settings/load.h"
#include "train/settings/presets/presets.h"
#include "train/settings/shell_line.h"

namespace moelab {
namespace {

std::string version() { return "moelab " MOELAB_VERSION " (" + build_name() + ")"; }

// The command-line parser and its results. CLI11 is told to accept unknown arguments; refuse_unknown()
// refuses them, so that messages can suggest the nearest name.
class Parser {
 public:
  Parser() : app_("moelab trains mixture-of-experts transformers under a memory budget", "moelab") {
    app_.set_version_flag("--version", version());
    app_.set_help_flag("-h,--help", kHelpHelp);
    app_.formatter(std::make_shared<OptionList>());
    app_.allow_extras();
    app_.option_defaults()->take_last();
    app_.require_subcommand(0, 1);
    for (const CommandText& text : command_texts()) add(text);
    app_.footer("Each command has its own --help; --help all lists its settings too.");
  }

  std::string help() { return app_.help(); }

  std::string completion(const std::string& shell) const {
    return completion_script(shell, app_, [](const std::string& name) {
      const auto text = std::find_if(command_texts().begin(), command_texts().end(),
                                     [&](const CommandText& one) { return name == one.name; });
      return text->settings;
    });
  }

  // False when help or version was printed instead.
  bool parse(int argc, const char* const* argv) {
    if (const std::optional<HelpRequest> request = help_request(argc, argv)) {
      std::cout << help(command_named(request->command), request->topic);
      return false;
    }
    result_.plan.program = argv[0];
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForVersion& version) {
      std::cout << version.what() << "\n";
      return false;
    } catch (const CLI::ParseError& error) {
      const std::vector<CLI::App*> called = app_.get_subcommands();
      const std::string command = called.empty() ? "" : called.front()->get_name() + " ";
      throw UserError("command line: " + std::string(error.what()) + "; see moelab " + command + "--help");
    }
    return true;
  }

  Arguments arguments() {
    refuse_unknown(app_, "moelab --help");
    if (app_.get_subcommands().empty()) throw UserError("command line: no command; " + one_of_commands());
    const CLI::App& sub = *app_.get_subcommands().front();
    refuse_unknown(sub, "moelab " + sub.get_name() + " --help");
    sources_.overrides = settings_in_order(sub);
    for (const std::string& text : sources_.overrides) result_.given.push_back(parse_override(text).key);
    for (const CommandText& text : command_texts())
      if (sub.get_name() == text.name) result_.command = text.command;
    if (result_.command == Command::generate || result_.command == Command::chat) {
      result_.generate.overrides = sources_.overrides;  // the other settings are in the checkpoint
    } else if (result_.command == Command::plan) {
      take_plan();
    } else if (result_.command == Command::techniques || result_.command == Command::fits) {
      take_model();
    } else {
      if (fill_) fill();
      if (result_.command == Command::eval) take_trained();
      result_.settings = load_settings(sources_, model_folder_settings);
    }
    return result_;
  }

 private:
  // eval of a run's or a checkpoint's folder: their config.yaml has all settings of the training.
  void take_trained() {
    namespace fs = std::filesystem;
    const fs::path folder = sources_.config.empty() ? result_.checkpoint : sources_.config;
    if (folder.empty() || !fs::exists(folder / "config.yaml")) return;
    const bool is_checkpoint = fs::exists(folder / "manifest.json");
    if (result_.checkpoint.empty() && is_checkpoint) result_.checkpoint = folder.string();
    sources_.config = (folder / "config.yaml").string();
  }

  // Null: of the empty name.
  static const CommandText* command_named(const std::string& name) {
    if (name.empty()) return nullptr;
    for (const CommandText& text : command_texts())
      if (name == text.name) return &text;
    std::vector<std::string> names;
    for (const CommandText& text : command_texts()) names.emplace_back(text.name);
    throw UserError("command line: unknown command " + describe({Value::Kind::argument, name, {}, 0}) +
                    did_you_mean(name, names) + " (see moelab --help)");
  }

  std::string help(const CommandText* command, const std::string& topic) {
    const UsedSettings used = command ? command->settings : kAllSettings;
    std::string own = command ? app_.get_subcommand(command->name)->help("moelab") : app_.help();
    // CLI11 prints an empty line for a group of hidden options.
    if (const size_t gap = own.find("\n\n\n"); gap != std::string::npos) own.erase(gap, 1);
    if (topic.empty()) return own;
    return (topic == "all" && command ? own + "\n" : "") + settings_topic(used, topic);
  }

  static constexpr const char* kConfigHelp =
      "named model, YAML file of settings, or a model's folder (Hugging Face, checkpoint or run) whose "
      "shape, attention and sequence length are taken";
  static constexpr const char* kConfigType = "NAME|FILE|FOLDER";

  void add(const CommandText& text) {
    CLI::App& sub = *app_.add_subcommand(text.name, text.about);
    sub.set_version_flag("--version", version());
    if (text.settings.empty()) sub.set_help_flag("-h,--help", "show this help");
    sub.footer([&text, &sub] {
      const std::string overview = settings_overview(text.settings, sub.get_option_no_throw("--preset"));
      return std::string(text.note) + "Example: " + text.example +
             (overview.empty() ? "" : "\n\n" + overview);
    });
    if (text.command == Command::completion) {
      sub.add_option("shell", result_.shell, "whose script is printed")
          ->required()
          ->check(CLI::IsMember({"bash", "zsh"}))
          ->type_name("bash|zsh");
      return;
    }
    if (text.command == Command::generate || text.command == Command::chat)
      return add_generate(sub, text.command == Command::chat);
    if (text.command == Command::plan) return add_plan(sub);
    if (text.command == Command::import_model || text.command == Command::export_model) {
      return add_folders(sub, text);
    }
    const bool lists = text.command == Command::techniques || text.command == Command::fits;
    if (text.command == Command::qualify) add_qualify(sub);
    if (lists || text.command == Command::estimate) sub.add_flag("--json", result_.json, "print JSON");
    if (lists) return add_model(sub, text);
    sub.add_option("--config", sources_.config, kConfigHelp)->type_name(kConfigType);
    sub.add_option("--preset", sources_.preset, "GPU size or profile, e.g. gpu-8gb")->type_name("NAME");
    add_short(sub, "--device", "run.device=", "short for run.device=")->type_name("auto|cpu|cuda");
    add_short(sub, "--scale",
              "run.scale=", "miniature whose every tensor is smaller, e.g. 1/64; short for run.scale=")
        ->type_name("SHARE");
    sub.add_flag("--print-config", result_.print_config, "print the resolved settings and stop");
    if (text.command == Command::train || text.command == Command::estimate)
      sub.add_flag("--fill", fill_,
                   "raise train.micro_batch, then train.sequence, until 80 to 95 % of the preset's card is "
                   "predicted to be taken");
    if (text.command == Command::train) {
      CLI::Option* resume =
          sub.add_option("--resume", result_.resume,
                         "continue from a checkpoint; auto: from the latest, if there is one")
              ->type_name("latest|auto|PATH");
      sub.add_flag("--overwrite", result_.overwrite,
                   "delete the run that is in run.dir, its checkpoints included")
          ->excludes(resume);
    }
    if (text.command == Command::estimate)
      sub.add_option("--ranks", result_.ranks,
                     "also run what each of N ranks would hold and send under ZeRO stages 0 to 3")
          ->check(CLI::Range(1, 1 << 20));
    if (text.command == Command::eval)
      sub.add_option(
             "--checkpoint", result_.checkpoint,
             "checkpoint to evaluate, or a folder that holds some; default: the newest in checkpoint.dir")
          ->type_name("PATH");
    sub.add_option(
           "settings", sources_.overrides,
           "settings that replace those of --config and --preset; of a key given twice the later wins")
        ->type_name("KEY=VALUE");
  }

  // An option that is short for a setting, e.g. --device for run.device=.
  CLI::Option* add_short(CLI::App& sub, const char* name, const char* key, const char* about) {
    CLI::Option* option = sub.add_option(name, unread_, about);
    short_for_[option] = key;
    return option;
  }

  // The command line's settings as KEY=VALUE in the order written, including options that are short for a
  // setting, so that the last value for a key wins.
  std::vector<std::string> settings_in_order(const CLI::App& sub) const {
    std::map<const CLI::Option*, size_t> taken;
    std::vector<std::string> settings;
    for (const CLI::Option* option : sub.parse_order()) {
      const std::string& text = option->results().at(taken[option]++);
      const auto key = short_for_.find(option);
      if (key != short_for_.end())
        settings.push_back(key->second + (option->get_name() == "--memory" ? card_bytes(text) : text));
      if (option->get_name() == "settings") settings.push_back(text);
    }
    return settings;
  }

  // A whole number of GB is a card's size, which means GiB.
  static std::string card_bytes(const std::string& text) {
    const size_t digits = text.find_first_not_of("0123456789");
    return digits > 0 && digits != text.npos && text.substr(digits) == "GB" ? text.substr(0, digits) + "GiB"
                                                                            : text;
  }

  void add_generate(CLI::App& sub, bool chat) {
    GenerateCall& call = result_.generate;
    sub.add_option("--from", call.from, "checkpoint, or the folder of a run (its newest one)")
        ->type_name("FOLDER")
        ->required();
    if (!chat) {
      CLI::Option* prompt = sub.add_option("--prompt", call.prompt, "text to continue")->type_name("TEXT");
      sub.add_option("--prompt-file", call.prompt_file, "file with the text to continue")
          ->type_name("FILE")
          ->excludes(prompt);
    }
    const auto add = [&](const char* name, auto& value, const char* about) {
      return sub.add_option(name, value, about)->capture_default_str();
    };
    add("--max-tokens", call.max_tokens, "most tokens to write in each text")->check(CLI::Range(1, 1 << 30));
    add("--temperature", call.sampling.temperature,
        "0: always the likeliest token; 1: the model's own probabilities");
    add("--top-k", call.sampling.top_k, "choose among the k likeliest tokens; 0: all");
    add("--top-p", call.sampling.top_p,
        "choose among the likeliest tokens that together have this probability; 1: all");
    add("--seed", call.sampling.seed, "the same seed writes the same text");
    if (!chat)
      add("--samples", call.samples, "number of texts, each with random numbers of its own")
          ->check(CLI::Range(1, 1 << 30));
    sub.add_option("settings", sources_.overrides, "changes to the checkpoint's settings, e.g. run.threads=1")
        ->type_name("KEY=VALUE");
  }

  void add_qualify(CLI::App& sub) {
    QualifyCall& call = result_.qualify;
    sub.add_flag("--json", call.json, "print JSON");
    sub.add_option("--patience", call.patience, "seconds after which a kernel that does not end is given up")
        ->capture_default_str()
        ->check(CLI::PositiveNumber)
        ->type_name("SECONDS");
    sub.add_option("--worker", call.worker)->group("");  // what the command starts itself with
  }

  void add_model(CLI::App& sub, const CommandText& text) {
    if (text.command == Command::techniques)
      sub.add_flag("--pairs", result_.pairs,
                   "predict the peak of the baseline, of each technique and of every two together");
    else
      sub.add_option("--techniques", result_.model.techniques,
                     "rows of `moelab techniques`; default: baseline,guides_stack")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->type_name("NAME,…");
    sub.add_option("--config", sources_.config, kConfigHelp)->type_name(kConfigType);
    sub.add_option("settings", sources_.overrides,
                   "changes to the baseline's settings; each technique's own settings replace them")
        ->type_name("KEY=VALUE");
  }

  void take_model() {
    const bool plain = result_.command == Command::techniques && !result_.pairs;
    if (plain && !(sources_.config.empty() && sources_.overrides.empty()))
      throw UserError(
          "command line: " +
          (sources_.overrides.empty() ? "--config " + sources_.config : sources_.overrides[0]) +
          ": the list of techniques takes no settings; predictions do: moelab techniques --pairs");
    result_.model.config = sources_.config;
    result_.model.overrides = sources_.overrides;
    result_.model.json = result_.json;
  }

  void add_plan(CLI::App& sub) {
    PlanCall& call = result_.plan;
    sub.add_option("--preset", sources_.preset,
                   "card, e.g. gpu-8gb: its memory, its speed, and the preset's batch")
        ->type_name("NAME");
    add_short(sub, "--memory",
              "memory.limit=", "memory of the device, by default its card's; 8GB is 8GiB, as for cards")
        ->type_name("BYTES");
    sub.add_option("--model,--config", sources_.config, kConfigHelp)->type_name(kConfigType);
    std::string devices;
    for (const std::string& device : cost_devices()) devices += (devices.empty() ? "" : "|") + device;
    sub.add_option("--device", call.device,
                   "device whose speed is assumed; by default the preset's card, else a probe's cpu")
        ->type_name(devices);
    sub.add_option("--ranks", call.ranks, "ranks, each with such a device; needs --link")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    std::string links;
    for (const std::string& link : link_names()) links += link + "|";
    sub.add_option("--link", call.link,
                   "what connects the ranks of a machine: a name, or a rate such as 500Mbit")
        ->type_name(links + "RATE");
    sub.add_option("--machines", call.machines, "machines with equally many of the ranks; needs --network")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    sub.add_option("--network", call.network, "what connects each rank to those of other machines")
        ->type_name("LINK");
    sub.add_option("--out", call.out, "file to write the fastest plan that fits into")->type_name("FILE");
    sub.add_flag("--json", call.json, "print JSON");
    sub.add_option("settings", sources_.overrides,
                   "settings that no plan may change; with placement.nvme_path a plan may use that drive")
        ->type_name("KEY=VALUE");
  }

  void take_plan() {
    PlanCall& call = result_.plan;
    call.pinned = result_.given;
    if (gives("parallel.data"))
      throw UserError("command line: parallel.data: a plan is for the ranks that --ranks counts");
    if (call.ranks > 1 && find_card(sources_.preset) != nullptr)  // ranks refuse captured steps
      sources_.overrides.insert(sources_.overrides.begin(), "memory.cuda_graphs=none");
    call.command = train_line();
    take_device(load_settings(sources_, model_folder_settings));
    check_links(call);
    if (call.ranks > 1) {
      const ParallelSettings p = load_settings(sources_, model_folder_settings).parallel;
      const int64_t data = layout_of(call.ranks, 0, p.tensor, p.pipeline, p.expert).data;
      sources_.overrides.push_back("parallel.data=" + std::to_string(data));
    }
    call.given = load_settings(sources_, model_folder_settings);
    if (call.given.memory.limit.count == 0)
      throw UserError(
          "plan: the memory is not known; give a card (--preset gpu-8gb, --device rtx4090) or --memory 8GiB");
    result_.settings = plan_base(call.given, call.pinned);
  }

  bool gives(std::string_view key) const {
    return std::find(result_.given.begin(), result_.given.end(), key) != result_.given.end();
  }

  // The training run that the user's words ask for.
  std::string train_line() const {
    std::vector<std::string> words = {result_.plan.program, "train"};
    if (!sources_.config.empty()) words.insert(words.end(), {"--config", sources_.config});
    if (!sources_.preset.empty()) words.insert(words.end(), {"--preset", sources_.preset});
    words.insert(words.end(), sources_.overrides.begin(), sources_.overrides.end());
    return shell_line(words);
  }

  // The device that a plan is for, and its memory if `asked`, what the user's words say, has no limit. A
  // card that --preset names stands above the device of a file.
  void take_device(Settings asked) {
    PlanCall& call = result_.plan;
    const bool of_card = find_card(sources_.preset) != nullptr && !gives("run.device");
    if (of_card) asked.run.device = DeviceChoice::cuda;
    const bool named = !call.device.empty();
    if (!named) call.device = plan_device_name(asked);
    const CostModel& costs = cost_model(call.device);
    if (named && gives("run.device") && asked.run.device != DeviceChoice::automatic &&
        asked.run.device != costs.runs_on)
      throw UserError("command line: --device " + call.device + " and run.device=" +
                      value_text(asked.run.device) + " are different devices; give one of them");
    const bool cpu = costs.runs_on == DeviceChoice::cpu;
    sources_.overrides.push_back(std::string("run.device=") + (cpu ? "cpu" : "cuda"));
    if (cpu || asked.memory.limit.count > 0) return;
    for (const Gpu& gpu : preset_gpus())
      if (gpu.name == costs.card)
        sources_.overrides.push_back("memory.limit=" + std::to_string(gpu.bytes >> 30) + "GiB");
  }

  // Adds what fills the card at full size: a miniature of the run has as many rows, and a sequence that is as
  // much shorter as the model's own.
  void fill() {
    Sources whole = sources_;
    whole.overrides.insert(whole.overrides.end(), {"run.scale=1", "run.device=cuda"});
    const Settings settings = load_settings(whole, model_folder_settings);
    const World world = world_from([](const char* name) { return std::getenv(name); });
    if (!world.alone() && settings.parallel.data == 0)
      throw UserError("--fill: how many of the ranks divide the data is not known yet; give parallel.data=N");
    const FilledCard full = fill_card(settings);
    for (const auto& [key, value] : full.changes) sources_.overrides.push_back(key + "=" + value);
    result_.filled = full.text;
  }

  void add_folders(CLI::App& sub, const CommandText& text) {
    const bool imports = text.command == Command::import_model;
    sub.add_option("from", result_.from, imports ? "Hugging Face folder" : "checkpoint, or a folder of them")
        ->type_name("FOLDER")
        ->required();
    sub.add_option("to", result_.to, "new folder")->type_name("FOLDER")->required();
  }

  CLI::App app_;
  Sources sources_;
  std::map<const CLI::Option*, std::string> short_for_;  // options that set a setting -> "KEY="
  std::string unread_;                                   // their values, read by settings_in_order instead
  bool fill_ = false;
  Arguments result_;
};

}  // namespace

std::optional<Arguments> parse_arguments(int argc, const char* const* argv) {
  Parser parser;
  if (!parser.parse(argc, argv)) return std::nullopt;
  return parser.arguments();
}

std::string program_help() { return Parser().help(); }

std::string completion_script(const std::string& shell) { return Parser().completion(shell); }

}  // namespace moelab
