// Whatever the bytes, the reader refuses them with a UserError or keeps its promises; what it accepts can be
// written again and reads the same.
#include <cstdlib>
#include <string>

#include "moe/settings/error.h"
#include "train/checkpoint/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_promises(const moelab::SafetensorsHeader& header, std::span<const std::byte> file) {
  uint64_t expected = 0;
  volatile unsigned sum = 0;
  for (const moelab::SafetensorsInfo& info : header.tensors) {
    require(info.begin == expected && header.find(info.name) == &info);
    uint64_t bytes = moelab::type_bytes(info.type);
    for (const int64_t size : info.shape) bytes *= static_cast<uint64_t>(size);
    require(info.bytes() == bytes);
    for (const std::byte byte : file.subspan(header.data_offset + info.begin, bytes))
      sum = sum + unsigned(byte);
    expected = info.end;
  }
  require(header.data_offset + expected == file.size());
  require(header.index.size() == header.tensors.size());
}

void check_round_trip(const moelab::SafetensorsHeader& header, uint64_t data_bytes) {
  const moelab::SafetensorsLayout layout = moelab::layout_safetensors(header.tensors, header.metadata);
  const std::string again = layout.head + std::string(data_bytes, '\0');
  const moelab::SafetensorsHeader read = moelab::parse_safetensors(std::as_bytes(std::span(again)), "again");
  require(read.metadata == header.metadata && read.tensors.size() == header.tensors.size());
  for (const moelab::SafetensorsInfo& info : read.tensors) {
    const moelab::SafetensorsInfo* before = header.find(info.name);
    require(before && before->type == info.type && before->shape == info.shape);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  try {
    const moelab::SafetensorsHeader header = moelab::parse_safetensors(file, "file");
    check_promises(header, file);
    check_round_trip(header, size - header.data_offset);
  } catch (const moelab::UserError&) {
  }
  return 0;
}
