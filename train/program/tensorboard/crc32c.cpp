#include "train/program/tensorboard/crc32c.h"

#include <array>

namespace moelab {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bit-reversed: lowest bit first

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = ~uint32_t{0};
  for (const char byte : bytes) value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~value;
}

}  // namespace moelab
