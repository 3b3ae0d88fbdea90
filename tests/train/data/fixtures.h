#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "moe/settings/error.h"
#include "tests/temporary_folder.h"

namespace moelab::test {

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline void write_nanogpt(const std::filesystem::path& path, const std::vector<uint16_t>& ids) {
  write_bytes(path, raw(ids));
}

inline std::string llmc_header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return raw(header);
}

inline void write_llmc(const std::filesystem::path& path, const std::vector<uint16_t>& ids) {
  write_bytes(path, llmc_header(20240520, 1, static_cast<int32_t>(ids.size())) + raw(ids));
}

// first, first + 1, …, so that each token shows its position.
inline std::vector<uint16_t> counting(int64_t count, int64_t first = 0) {
  std::vector<uint16_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<uint16_t>(first + i));
  return ids;
}

// Expects `action` to throw a UserError of one line that contains all of `parts`.
template <class Action>
void expect_user_error(const Action& action, const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "no UserError";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace moelab::test
