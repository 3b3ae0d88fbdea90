#include "train/settings/yaml_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "moe/settings/error.h"

namespace moelab {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr size_t kMaxDepth = 16;

// Builds a Value from yaml-cpp's events. yaml-cpp's own Node class would drop duplicate keys and follow
// aliases.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(const std::string& name) : name_(name) {}

  bool has_root() const { return has_root_; }
  const Value& root() const { return root_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (std::exchange(has_document_, true)) fail(mark, "a second document starts; one is expected");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check(mark, "", anchor);
    add({Value::Kind::null, "", {}, mark.line + 1});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "aliases (*name) are not taken");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    check(mark, tag, anchor);
    add({tag == "!" ? Value::Kind::quoted : Value::Kind::plain, text, {}, mark.line + 1});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::Kind::list);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::Kind::map);
  }
  void OnMapEnd() override { close(); }

 private:
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what) const {
    throw UserError(name_ + ":" + std::to_string(mark.line + 1) + ": " + what);
  }
  // yaml-cpp's tags: "?" plain or collection, "!" quoted, anything else was written by the user.
  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != 0) fail(mark, "anchors (&name) are not taken");
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(mark, "tags (" + tag.substr(0, 60) + ") are not taken");
  }
  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Value::Kind kind) {
    check(mark, tag, anchor);
    if (stack_.size() >= kMaxDepth) fail(mark, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
    stack_.push_back({kind, "", {}, mark.line + 1});
  }
  void close() {
    Value value = std::move(stack_.back());
    stack_.pop_back();
    add(std::move(value));
  }
  void add(Value value) {
    if (!stack_.empty()) {
      stack_.back().items.push_back(std::move(value));
    } else {
      root_ = std::move(value), has_root_ = true;
    }
  }

  std::string name_;
  std::vector<Value> stack_;
  Value root_;
  bool has_document_ = false, has_root_ = false;
};

std::string place(const std::string& name, const Value& value) {
  return name + ":" + std::to_string(value.line);
}

// Calls f(key, value) for each entry, after checking that keys are text and unique. `prefix` precedes the key
// in messages.
template <class Function>
void for_each_entry(const Value& map, const std::string& name, const std::string& prefix, Function f) {
  for (size_t i = 0; i + 1 < map.items.size(); i += 2) {
    const Value& key = map.items[i];
    if (key.kind != Value::Kind::plain && key.kind != Value::Kind::quoted)
      throw UserError(place(name, key) + ": expected the name of a setting, got " + describe(key));
    for (size_t j = 0; j < i; j += 2)
      if (map.items[j].text == key.text)
        throw UserError(place(name, key) + ": " + prefix + describe({Value::Kind::plain, key.text, {}, 0}) +
                        ": given twice, first on line " + std::to_string(map.items[j].line));
    f(key, map.items[i + 1]);
  }
}

// Checked before parsing: yaml-cpp treats byte 4 as the end of the file and replaces bytes that are not
// UTF-8.
void check_bytes(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    std::replace(line.begin(), line.end(), '\t', ' ');
    if (!is_clean_text(line))
      throw UserError(name + ":" + std::to_string(number) +
                      ": not a text file in UTF-8 without control characters");
  }
}

Value parse(const std::string& text, const std::string& name) {
  check_bytes(text, name);
  Builder builder(name);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) continue;
  } catch (const YAML::Exception& error) {
    throw UserError(name + ":" + std::to_string(std::max(error.mark.line, 0) + 1) +
                    ": not YAML: " + error.msg);
  }
  if (!builder.has_root() || builder.root().kind != Value::Kind::map)
    throw UserError(name + ":1: expected groups of settings, e.g. train: {steps: 20}, got " +
                    describe(builder.root()));
  return builder.root();
}

}  // namespace

std::vector<Assignment> read_yaml(const std::string& text, const std::string& name) {
  const Value root = parse(text, name);
  const std::vector<std::string> groups = setting_groups(), keys = setting_keys();
  const auto known = [](const std::vector<std::string>& names, const std::string& what) {
    return std::find(names.begin(), names.end(), what) != names.end();
  };
  std::vector<Assignment> assignments;
  for_each_entry(root, name, "", [&](const Value& group, const Value& content) {
    const std::string where = place(name, group) + ": " + describe({Value::Kind::plain, group.text, {}, 0});
    if (!known(groups, group.text)) {
      const size_t dot = group.text.find('.');
      if (known(keys, group.text))
        throw UserError(where + ": a key goes inside its group, e.g. " + group.text.substr(0, dot) + ": {" +
                        group.text.substr(dot + 1) + ": …}");
      throw UserError(where + ": unknown group" + did_you_mean(group.text, groups));
    }
    if (content.kind != Value::Kind::map)
      throw UserError(where + ": expected a group of settings, got " + describe(content));
    const auto add = [&](const Value& key, const std::string& given, const Value& value) {
      const std::string full = setting_named(given);
      if (!known(keys, full)) throw_unknown_key(place(name, key), full);
      for (const Assignment& earlier : assignments)
        if (earlier.key == full) throw UserError(place(name, key) + ": " + full + ": given twice");
      assignments.push_back({full, value, place(name, key)});
    };
    for_each_entry(content, name, group.text + ".", [&](const Value& key, const Value& value) {
      const std::string full = group.text + "." + key.text;
      const bool inner_group = std::any_of(
          keys.begin(), keys.end(), [&](const std::string& known) { return known.starts_with(full + "."); });
      if (!inner_group || value.kind != Value::Kind::map) return add(key, full, value);
      for_each_entry(value, name, full + ".", [&](const Value& inner, const Value& inner_value) {
        add(inner, full + "." + inner.text, inner_value);
      });
    });
  });
  return assignments;
}

std::vector<Assignment> read_yaml_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) throw UserError(path + ": no such file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(path + ": cannot be opened for reading");
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes) throw UserError(path + ": larger than 1 MiB, which no settings file is");
  return read_yaml(text, path);
}

}  // namespace moelab
