#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moe/tensor_part.h"
#include "train/checkpoint/file_io.h"
#include "train/checkpoint/safetensors.h"

// manifest.json: lists the files and tensors of a checkpoint with their hashes, so that any change is
// noticed.
//
//   {"xxh3_128":"<hash of BODY's bytes>","body":BODY}\n
//   BODY = {"format":"moelab-checkpoint","version":1,"commit":"…",
//           "files":{"NAME":{"size":…,"xxh3_128":"…","tensors":{"NAME":{"dtype","shape","xxh3_128"}}}}}
//
// In version 2 a file may hold a part of a tensor. Such a tensor has "part":{"shape":[…],"first":…} besides:
// the shape of the whole, and the part's first element in row-major order. In version 3 a part may be one of
// a slice, which has "dim":…,"ranges":[[FIRST,COUNT],…] there too; "first" then counts in the slice.
// Manifests without parts are written as version 1, those without slices as version 2.
//
// The text around BODY is fixed, so no bit of the manifest itself can change unnoticed either.
namespace moelab {

struct ManifestTensor {
  SafetensorsType type;
  std::vector<int64_t> shape;
  std::string hash;                     // xxh3-128 of the tensor's bytes
  std::optional<TensorPart> part = {};  // none: the whole
  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

struct ManifestFile {
  FileDigest digest;
  std::map<std::string, ManifestTensor> tensors;  // of a .safetensors file
};

struct Manifest {
  std::string commit;
  std::map<std::string, ManifestFile> files;  // by name, without the manifest itself
};

std::string manifest_text(const Manifest& manifest);
// Throws UserError, beginning with `where`, if the manifest is damaged, of another version, or names a file
// outside of its folder.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace moelab
