#include <gtest/gtest.h>

#include <string>

#include "train/program/tensorboard/crc32c.h"

namespace moelab {
namespace {

std::string counting(int first, int step) {
  std::string bytes;
  for (int i = 0; i < 32; ++i) bytes += static_cast<char>(first + i * step);
  return bytes;
}

// RFC 3720, appendix B.4, lists the CRC's bytes in transmission order, lowest first.
TEST(Crc32c, MatchesTheVectorsOfRfc3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(counting(0, 1)), 0x46dd794eu);
  EXPECT_EQ(crc32c(counting(31, -1)), 0x113fdb5cu);
  const std::string read_command(
      "\x01\xc0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x14\x00\x00\x00\x00\x00\x04\x00"
      "\x00\x00\x00\x14\x00\x00\x00\x18\x28\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00",
      48);
  EXPECT_EQ(crc32c(read_command), 0xd9963a56u);
}

// The check value of the catalogue of parametrised CRC algorithms, CRC-32/ISCSI.
TEST(Crc32c, MatchesTheCheckValue) { EXPECT_EQ(crc32c("123456789"), 0xe3069283u); }

TEST(Crc32c, OfNothingIsZero) { EXPECT_EQ(crc32c(""), 0u); }

}  // namespace
}  // namespace moelab
