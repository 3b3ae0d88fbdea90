#include "train/checkpoint/safetensors_file.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

namespace moelab {
namespace fs = std::filesystem;
namespace {

constexpr std::array<at::ScalarType, kSafetensorsTypes> kScalarTypes{
    at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,          at::kInt,
    at::kShort,  at::kChar,  at::kByte, at::kBool,     at::kFloat8_e4m3fn, at::kFloat8_e5m2};

at::Tensor empty_on_cpu(const SafetensorsInfo& info) {
  return at::empty(info.shape, at::TensorOptions(to_scalar_type(info.type)));
}

at::Tensor row_major_on_cpu(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

// Checks the bytes of a BOOL tensor: reading anything but 0 or 1 as a C++ bool is undefined.
void check_booleans(std::span<const std::byte> bytes, const std::string& where) {
  const auto valid = [](std::byte b) { return b == std::byte{0} || b == std::byte{1}; };
  if (!std::all_of(bytes.begin(), bytes.end(), valid))
    throw UserError(where + " is BOOL with a byte beyond 0 and 1");
}

}  // namespace

at::ScalarType to_scalar_type(SafetensorsType type) { return kScalarTypes.at(static_cast<size_t>(type)); }

SafetensorsType to_safetensors_type(at::ScalarType type) {
  const auto found = std::find(kScalarTypes.begin(), kScalarTypes.end(), type);
  if (found == kScalarTypes.end()) {
    throw UserError(std::string("safetensors: the type ") + c10::toString(type) + " cannot be written");
  }
  return static_cast<SafetensorsType>(found - kScalarTypes.begin());
}

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : path_(path), map_(path), header_(parse_safetensors(map_.bytes(), path.string())) {}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsInfo& info) const {
  return map_.bytes().subspan(header_.data_offset + info.begin, info.bytes());
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const SafetensorsInfo* info = header_.find(name);
  if (!info) throw UserError(path_.string() + ": has no tensor " + in_quotes(name));
  const at::Tensor result = empty_on_cpu(*info);
  copy_to(*info, result);
  return result;
}

void SafetensorsFile::copy_to(const SafetensorsInfo& info, const at::Tensor& into) const {
  TORCH_CHECK(into.sizes() == at::IntArrayRef(info.shape), "tensor ", info.name,
              " doesn't fit its destination");
  copy_elements(info, 0, into);
}

void SafetensorsFile::copy_elements(const SafetensorsInfo& info, int64_t first,
                                    const at::Tensor& into) const {
  const uint64_t begin = static_cast<uint64_t>(first) * type_bytes(info.type);
  TORCH_CHECK(
      into.scalar_type() == to_scalar_type(info.type) && first >= 0 && begin + into.nbytes() <= info.bytes(),
      "tensor ", info.name, " doesn't fit its destination");
  const std::span<const std::byte> source = bytes(info).subspan(begin, into.nbytes());
  if (source.empty()) return;
  if (info.type == SafetensorsType::boolean) {
    check_booleans(source, path_.string() + ": tensor " + in_quotes(info.name));
  }
  const at::NoGradGuard no_grad;
  // Files from other programs may have tensors that are not aligned to their type; ours never do.
  const bool aligned = reinterpret_cast<uintptr_t>(source.data()) % type_bytes(info.type) == 0;
  if (aligned) {
    // from_blob wants a mutable pointer; copy_ only reads.
    auto* data = const_cast<std::byte*>(source.data());
    into.copy_(at::from_blob(data, into.sizes(), at::TensorOptions(into.scalar_type())));
    return;
  }
  const at::Tensor copy = at::empty(into.sizes(), at::TensorOptions(into.scalar_type()));
  std::memcpy(copy.mutable_data_ptr(), source.data(), source.size());
  into.copy_(copy);
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<SafetensorsInfo> tensors,
                                     const SafetensorsMetadata& metadata)
    : SafetensorsWriter(path, layout_safetensors(std::move(tensors), metadata)) {}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, SafetensorsLayout layout)
    : file_(path), tensors_(std::move(layout.tensors)) {
  file_.write(std::as_bytes(std::span(layout.head)));
}

void SafetensorsWriter::append(const at::Tensor& tensor) {
  TORCH_CHECK(next_ < tensors_.size(), "more tensors appended than announced");
  const SafetensorsInfo& info = tensors_[next_];
  TORCH_CHECK(
      tensor.sizes() == at::IntArrayRef(info.shape) && tensor.scalar_type() == to_scalar_type(info.type),
      "tensor ", info.name, " was announced with another shape or type");
  append_bytes(bytes_of(row_major_on_cpu(tensor)));
}

void SafetensorsWriter::append_bytes(std::span<const std::byte> bytes) {
  TORCH_CHECK(next_ < tensors_.size() && bytes.size() == tensors_[next_].bytes(),
              "a tensor was appended that was not announced so");
  file_.write(bytes);
  ++next_;
}

FileDigest SafetensorsWriter::finish() {
  TORCH_CHECK(next_ == tensors_.size(), "tensor ", tensors_[next_].name, " was never appended");
  return file_.finish();
}

SafetensorsInfo describe_tensor(const TensorEntry& entry) {
  SafetensorsInfo info;
  info.name = entry.name;
  info.type = to_safetensors_type(entry.tensor.scalar_type());
  info.shape = entry.tensor.sizes().vec();
  return info;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(), "bytes_of wants a row-major CPU tensor");
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

FileDigest write_safetensors(const fs::path& path, const std::vector<TensorEntry>& entries,
                             const SafetensorsMetadata& metadata, const OnTensor& on_tensor) {
  std::vector<SafetensorsInfo> tensors;
  std::unordered_map<std::string_view, const at::Tensor*> by_name;
  for (const TensorEntry& entry : entries) {
    tensors.push_back(describe_tensor(entry));
    by_name[entry.name] = &entry.tensor;
  }
  SafetensorsWriter writer(path, std::move(tensors), metadata);
  for (const SafetensorsInfo& info : writer.tensors()) {
    const at::Tensor tensor = row_major_on_cpu(*by_name.at(info.name));
    writer.append_bytes(bytes_of(tensor));
    if (on_tensor) on_tensor(info, bytes_of(tensor));
  }
  return writer.finish();
}

}  // namespace moelab
