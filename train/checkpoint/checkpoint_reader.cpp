#include <algorithm>
#include <cerrno>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/hash.h"
#include "train/checkpoint/manifest.h"
#include "train/io/json_text.h"

namespace moelab {
namespace fs = std::filesystem;
namespace {

// The error for damage. Also used for content that passes the checksums but is invalid, through a bug or an
// attack.
[[noreturn]] void damaged(const fs::path& path, const std::string& what) {
  throw UserError(path.string() + ": damaged: " + what);
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  std::error_code error;
  if (!fs::exists(path, error) && !error) {
    throw UserError(folder.string() + ": not a checkpoint: it has no " + std::string(kManifestName) +
                    "; give a folder …/step-N");
  }
  Manifest manifest = parse_manifest(read_text_file(path, kMaxCheckpointText), path.string());
  for (const std::string_view name : {kModelName, kOptimizerName, kStateName}) {
    const auto named = [&](const auto& file) { return is_name(file.first, name); };
    if (std::none_of(manifest.files.begin(), manifest.files.end(), named))
      damaged(path, "it doesn't list " + std::string(name));
  }
  return manifest;
}

void verify_digest(const fs::path& path, const FileDigest& expected) {
  const FileDigest found = digest_file(path);
  if (found.size != expected.size) {
    damaged(path, std::to_string(found.size) + " bytes instead of " + std::to_string(expected.size));
  }
  if (found.hash != expected.hash) damaged(path, "its checksum doesn't match the manifest");
}

// The file's hash protects the bytes on disk; the tensors' hashes protect the bytes given to the writer.
void verify_tensors(const SafetensorsFile& file, const ManifestFile& expected) {
  if (file.header().tensors.size() != expected.tensors.size())
    damaged(file.path(), "not the manifest's tensors");
  for (const SafetensorsInfo& info : file.header().tensors) {
    const auto found = expected.tensors.find(info.name);
    if (found == expected.tensors.end() ||
        found->second !=
            ManifestTensor{info.type, info.shape, xxh3_hex(file.bytes(info)), found->second.part}) {
      damaged(file.path(), "tensor " + in_quotes(info.name) + " doesn't match the manifest");
    }
  }
}

// The tensors of the file `name`, or of the ranks' files of that name.
CheckpointTensors read_tensors(const fs::path& folder, const Manifest& manifest, std::string_view name,
                               bool verified) {
  std::vector<SafetensorsFile> files;
  std::vector<std::map<std::string, ManifestTensor>> tensors;
  for (const auto& [file_name, entry] : manifest.files) {
    if (!is_name(file_name, name)) continue;
    files.emplace_back(folder / file_name);
    if (!verified) verify_tensors(files.back(), entry);
    tensors.push_back(entry.tensors);
  }
  const std::string where = (files.size() == 1 ? files.front().path() : folder).string();
  return {std::move(files), tensors, where};
}

TrainingState read_state(const fs::path& path) {
  const nlohmann::json json = parse_json(read_text_file(path, kMaxCheckpointText), path.string());
  try {
    return {count_of(json.at("step")), count_of(json.at("tokens")), json.at("state").dump(),
            json.value("evaluation_due", false)};
  } catch (const nlohmann::json::exception& error) {
    damaged(path, error.what());
  } catch (const UserError& error) {
    damaged(path, error.what());
  }
}

// True if the checkpoint itself is at fault: a missing file, or a medium that cannot be read.
bool blames_checkpoint(const IoError& error) {
  return error.code == ENOENT || error.code == ENOTDIR || error.code == EISDIR || error.code == EIO;
}

void quarantine(const fs::path& checkpoints, int64_t step, const char* why) {
  std::cerr << "moelab: " << why << '\n';
  try {
    const fs::path target = rename_aside(checkpoints, step, "damaged");
    std::cerr << "moelab: set aside as " << target.string() << "; trying the checkpoint before it\n";
  } catch (const IoError& error) {
    std::cerr << "moelab: " << error.what() << "; trying the checkpoint before it\n";
  }
}

// None if that checkpoint was damaged.
std::optional<LoadedCheckpoint> try_load(const fs::path& checkpoints, int64_t step) {
  try {
    return load_checkpoint(checkpoints / step_name(step));
  } catch (const IoError& error) {
    if (!blames_checkpoint(error)) throw;
    quarantine(checkpoints, step, error.what());
  } catch (const UserError& error) {
    quarantine(checkpoints, step, error.what());
  }
  return std::nullopt;
}

}  // namespace

LoadedCheckpoint load_checkpoint(const fs::path& folder, bool verified) {
  const Manifest manifest = read_manifest(folder);
  if (!verified)
    for (const auto& [name, file] : manifest.files) verify_digest(folder / name, file.digest);
  LoadedCheckpoint loaded{folder,
                          read_state(folder / kStateName),
                          manifest.commit,
                          read_tensors(folder, manifest, kModelName, verified),
                          read_tensors(folder, manifest, kOptimizerName, verified),
                          {}};
  for (const auto& [name, file] : manifest.files) {
    const bool own = name == kStateName || is_name(name, kModelName) || is_name(name, kOptimizerName);
    if (!own) loaded.files[name] = read_text_file(folder / name, kMaxCheckpointText);
  }
  return loaded;
}

LoadedCheckpoint load_latest(const fs::path& checkpoints, int64_t at_most) {
  std::vector<int64_t> steps = list_checkpoints(checkpoints);
  std::erase_if(steps, [&](int64_t step) { return step > at_most; });
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (std::optional<LoadedCheckpoint> loaded = try_load(checkpoints, *step)) {
      if (step != steps.rbegin()) {
        std::cerr << "moelab: fell back to the checkpoint " << loaded->path.string() << '\n';
      }
      return std::move(*loaded);
    }
  }
  throw UserError(checkpoints.string() + ": no checkpoint to load there" +
                  (steps.empty() ? "" : ": all of them were damaged"));
}

LoadedCheckpoint load_checkpoint_in(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kManifestName, error)) return load_checkpoint(folder);
  for (const fs::path& checkpoints : {folder / "checkpoints", folder}) {
    if (fs::is_directory(checkpoints, error) && !list_checkpoints(checkpoints).empty()) {
      return load_latest(checkpoints);
    }
  }
  throw UserError(folder.string() +
                  ": no checkpoint there; give the folder of one (runs/NAME/checkpoints/step-N) or of a run "
                  "(runs/NAME)");
}

LoadedCheckpoint load_checkpoint_or_earlier(const fs::path& folder) {
  const fs::path path = (fs::absolute(folder) / "").parent_path();  // without a trailing slash
  const fs::path checkpoints = path.parent_path();
  for (const int64_t step : list_checkpoints(checkpoints)) {
    if (path.filename() == step_name(step)) return load_latest(checkpoints, step);
  }
  return load_checkpoint(folder);
}

}  // namespace moelab
