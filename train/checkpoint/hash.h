#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace moelab {

// xxh3-128 of a stream of bytes (https://xxhash.com, seed 0). Detects accidental damage; it is not a
// signature.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;

  void update(std::span<const std::byte> bytes);
  // The hash of all bytes so far, 32 lower-case hexadecimal digits, as `xxhsum -H2` prints it.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The hash of one contiguous range of bytes.
std::string xxh3_hex(std::span<const std::byte> bytes);

}  // namespace moelab
