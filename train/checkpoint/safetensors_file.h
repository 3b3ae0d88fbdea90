#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "train/checkpoint/file_io.h"
#include "train/checkpoint/safetensors.h"
#include "train/files/mapped_file.h"

// safetensors files and LibTorch's tensors. Format and checks are safetensors.h's; no pickle is ever read.
namespace moelab {

struct TensorEntry {
  std::string name;
  at::Tensor tensor;
};

at::ScalarType to_scalar_type(SafetensorsType type);
// Throws UserError for a type that the format (or this reader of it) lacks.
SafetensorsType to_safetensors_type(at::ScalarType type);

// A file to read, mapped; the header is checked when it is opened. Damage that appears under an open mapping
// (a file truncated by someone else) is the kernel's SIGBUS.
class SafetensorsFile {
 public:
  // Throws UserError, IoError.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // The tensor's bytes in the mapping.
  std::span<const std::byte> bytes(const SafetensorsInfo& info) const;

  // A copy on the CPU, row-major. Throws UserError when there is none of that name.
  at::Tensor tensor(const std::string& name) const;
  // Copies into `into`, of the same shape and type, on any device and with any strides; outside of autograd.
  void copy_to(const SafetensorsInfo& info, const at::Tensor& into) const;

 private:
  std::filesystem::path path_;
  MappedFile map_;
  SafetensorsHeader header_;
};

// A new file, written tensor by tensor, so that none but the current one need be in memory.
class SafetensorsWriter {
 public:
  // As layout_safetensors; the file must not exist yet. Throws UserError, IoError.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsInfo> tensors,
                    const SafetensorsMetadata& metadata = {});

  // The order in which append() takes them.
  const std::vector<SafetensorsInfo>& tensors() const { return tensors_; }
  // The next tensor: same type and shape as announced, any device and strides.
  void append(const at::Tensor& tensor);
  // The same, as row-major bytes.
  void append_bytes(std::span<const std::byte> bytes);
  // fsyncs and closes. All tensors must have been appended.
  FileDigest finish();

 private:
  SafetensorsWriter(const std::filesystem::path& path, SafetensorsLayout layout);

  OutputFile file_;
  std::vector<SafetensorsInfo> tensors_;
  size_t next_ = 0;
};

SafetensorsInfo describe_tensor(const TensorEntry& entry);
// A row-major CPU tensor's bytes.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

// Writes all entries; `path` must not exist yet. `on_tensor`, when given, is shown each tensor's bytes.
using OnTensor = std::function<void(const SafetensorsInfo&, std::span<const std::byte>)>;
FileDigest write_safetensors(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                             const SafetensorsMetadata& metadata = {}, const OnTensor& on_tensor = {});

// Copies every tensor of the file into the entry of its name, in place. Before anything is written, names,
// shapes and types are compared both ways: a tensor missing in the file, one that no entry asks for, or one
// that differs is a UserError naming it.
void restore(const SafetensorsFile& file, const std::vector<TensorEntry>& into);

}  // namespace moelab
