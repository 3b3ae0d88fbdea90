#include "train/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "train/checkpoint/hash.h"
#include "train/io/json_text.h"

namespace moelab {
namespace {

constexpr std::string_view kBeforeHash = "{\"xxh3_128\":\"";
constexpr std::string_view kAfterHash = "\",\"body\":";
constexpr std::string_view kAfterBody = "}\n";
constexpr size_t kHashDigits = 32;
constexpr int kVersion = 1, kVersionWithParts = 2, kVersionWithSlices = 3;

std::string hash_text(std::string_view text) { return xxh3_hex(std::as_bytes(std::span(text))); }

// Checks the hash and the fixed text around the body, and returns the body.
std::string_view verified_body(std::string_view text, const std::string& where) {
  const size_t body_at = kBeforeHash.size() + kHashDigits + kAfterHash.size();
  const bool long_enough = text.size() >= body_at + kAfterBody.size();
  if (!long_enough || !text.starts_with(kBeforeHash) || !text.ends_with(kAfterBody) ||
      text.substr(kBeforeHash.size() + kHashDigits, kAfterHash.size()) != kAfterHash) {
    throw UserError(where + ": damaged: not a checkpoint's manifest");
  }
  const std::string_view body = text.substr(body_at, text.size() - body_at - kAfterBody.size());
  if (text.substr(kBeforeHash.size(), kHashDigits) != hash_text(body)) {
    throw UserError(where + ": damaged: its checksum doesn't match");
  }
  return body;
}

// True for the name of a file in the checkpoint's own folder.
bool plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

ManifestTensor read_tensor_entry(const nlohmann::json& json) {
  const std::optional<SafetensorsType> type = parse_type(json.at("dtype").get<std::string>());
  if (!type) throw UserError("an unknown dtype");
  ManifestTensor tensor = {*type, integers_of(json.at("shape")), json.at("xxh3_128").get<std::string>()};
  if (!json.contains("part")) return tensor;
  const nlohmann::json& part = json["part"];
  tensor.part = {integers_of(part.at("shape")), integer_of(part.at("first"))};
  if (!part.contains("ranges")) return tensor;
  tensor.part->slice.dim = integer_of(part.at("dim"));
  for (const nlohmann::json& range : part["ranges"])
    tensor.part->slice.ranges.push_back({integer_of(range.at(0)), integer_of(range.at(1))});
  return tensor;
}

ManifestFile read_file_entry(const nlohmann::json& json) {
  ManifestFile file;
  file.digest = {static_cast<uint64_t>(count_of(json.at("size"))), json.at("xxh3_128").get<std::string>()};
  if (!json.contains("tensors")) return file;
  for (const auto& [name, tensor] : json.at("tensors").items())
    file.tensors[name] = read_tensor_entry(tensor);
  return file;
}

Manifest read_body(const nlohmann::json& body) {
  const int64_t version = body.at("format") == "moelab-checkpoint" ? integer_of(body.at("version")) : 0;
  if (version < kVersion || version > kVersionWithSlices)
    throw UserError("another format, or a version later than " + std::to_string(kVersionWithSlices));
  Manifest manifest;
  manifest.commit = body.at("commit").get<std::string>();
  for (const auto& [name, file] : body.at("files").items()) {
    if (!plain_name(name))
      throw UserError("it names the file " + in_quotes(name) + ", outside of its folder");
    manifest.files[name] = read_file_entry(file);
  }
  return manifest;
}

nlohmann::json part_json(const TensorPart& part) {
  nlohmann::json json = {{"shape", part.shape}, {"first", part.first}};
  if (part.slice.whole()) return json;
  json["dim"] = part.slice.dim;
  for (const Range& range : part.slice.ranges) json["ranges"].push_back({range.first, range.count});
  return json;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  nlohmann::json files = nlohmann::json::object();
  int version = kVersion;
  for (const auto& [name, file] : manifest.files) {
    nlohmann::json entry = {{"size", file.digest.size}, {"xxh3_128", file.digest.hash}};
    for (const auto& [tensor_name, tensor] : file.tensors) {
      entry["tensors"][tensor_name] = {
          {"dtype", type_name(tensor.type)}, {"shape", tensor.shape}, {"xxh3_128", tensor.hash}};
      if (!tensor.part) continue;
      entry["tensors"][tensor_name]["part"] = part_json(*tensor.part);
      version = std::max(version, tensor.part->slice.whole() ? kVersionWithParts : kVersionWithSlices);
    }
    files[name] = std::move(entry);
  }
  const nlohmann::json body = {{"format", "moelab-checkpoint"},
                               {"version", version},
                               {"commit", manifest.commit},
                               {"files", std::move(files)}};
  const std::string text = body.dump(1);
  return std::string(kBeforeHash) + hash_text(text) + std::string(kAfterHash) + text +
         std::string(kAfterBody);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const nlohmann::json body = parse_json(verified_body(text, where), where);
  try {
    return read_body(body);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(where + ": not a manifest of this version: " + error.what());
  } catch (const UserError& error) {
    throw UserError(where + ": " + error.what());
  }
}

}  // namespace moelab
