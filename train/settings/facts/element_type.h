#pragma once
#include <cstdint>
#include <string>

#include "kernels/formats/quantize.h"

namespace moelab {

// The type of a tensor's elements, for code that computes bytes without having a tensor.
enum class ElementType { fp32, bf16, fp16, int16, int8, uint8 };

constexpr int64_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return 4;
    case ElementType::bf16:
    case ElementType::fp16:
    case ElementType::int16:
      return 2;
    case ElementType::int8:
    case ElementType::uint8:
      break;
  }
  return 1;
}

// Bytes per element in 8 bits, including its share of the block's fp32 scale
// (kernels/formats/packed_blocks.h).
inline constexpr double kCodedBytes = 1 + 4.0 / kQuantBlock;
inline std::string coded_bytes_text() { return "1 + 4/" + std::to_string(kQuantBlock); }

}  // namespace moelab
