#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "moe/tensor_part.h"
#include "train/checkpoint/file_io.h"
#include "train/checkpoint/safetensors.h"
#include "train/io/mapped_file.h"

// Reads and writes LibTorch tensors in safetensors files. safetensors.h has the format and its checks; pickle
// is never read.
namespace moelab {

// A tensor, or the part of one that a rank has.
struct TensorEntry {
  std::string name;
  at::Tensor tensor;
  std::optional<TensorPart> part = {};  // none: the whole
  bool elsewhere = false;               // another rank writes the same to a checkpoint
};

at::ScalarType to_scalar_type(SafetensorsType type);
// Throws UserError for a type that the format, or this implementation, lacks.
SafetensorsType to_safetensors_type(at::ScalarType type);

// A file mapped for reading; its header is checked on opening. If the file is truncated while mapped, the
// kernel sends SIGBUS.
class SafetensorsFile {
 public:
  // Throws UserError, IoError.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // The tensor's bytes in the mapping.
  std::span<const std::byte> bytes(const SafetensorsInfo& info) const;

  // A copy on the CPU, row-major. Throws UserError if no tensor has that name.
  at::Tensor tensor(const std::string& name) const;
  // Copies into `into`, which has the same shape and type but any device and strides. Not recorded by
  // autograd.
  void copy_to(const SafetensorsInfo& info, const at::Tensor& into) const;
  // As above, of the tensor's elements from `first` on as many as `into` has.
  void copy_elements(const SafetensorsInfo& info, int64_t first, const at::Tensor& into) const;

 private:
  std::filesystem::path path_;
  MappedFile map_;
  SafetensorsHeader header_;
};

// Writes a new file tensor by tensor, so that only the current one need be in memory.
class SafetensorsWriter {
 public:
  // As layout_safetensors; the file must not exist yet. Throws UserError, IoError.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsInfo> tensors,
                    const SafetensorsMetadata& metadata = {});

  // The tensors in the order that append() expects.
  const std::vector<SafetensorsInfo>& tensors() const { return tensors_; }
  // The next tensor: same type and shape as announced, any device and strides.
  void append(const at::Tensor& tensor);
  // As append(), with row-major bytes.
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

// Writes all entries; `path` must not exist yet. `on_tensor`, if given, is called with each tensor's bytes.
using OnTensor = std::function<void(const SafetensorsInfo&, std::span<const std::byte>)>;
FileDigest write_safetensors(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                             const SafetensorsMetadata& metadata = {}, const OnTensor& on_tensor = {});

}  // namespace moelab
