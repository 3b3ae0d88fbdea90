#pragma once
#include <cstdint>
#include <string_view>

namespace moelab {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4), as a number.
uint32_t crc32c(std::string_view bytes);

}  // namespace moelab
