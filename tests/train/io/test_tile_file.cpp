#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <random>

#include "tests/temporary_folder.h"
#include "tests/train/io/lazy_queue.h"
#include "train/io/tile_file.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kTile = 2 * TileFile::kAlign;

struct Memory {
  explicit Memory(int64_t tiles) : bytes(tiles * kTile) {
    data = static_cast<std::byte*>(std::aligned_alloc(TileFile::kAlign, bytes));
  }
  ~Memory() { std::free(data); }
  std::span<std::byte> span() const { return {data, bytes}; }
  size_t bytes;
  std::byte* data;
};

std::vector<char> random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<char> bytes(count);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Answers every request with the test's result.
struct FakeQueue : FileQueue {
  explicit FakeQueue(int64_t result) : result(result) {}
  void submit(const FileRequest& request) override { tags.push_back(request.tag); }
  FileResult wait() override {
    const FileResult done{tags.back(), result};
    tags.pop_back();
    return done;
  }
  int64_t result;
  std::vector<int64_t> tags;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "none";
}

TEST(TileFile, GivesBackWhatWasWrittenByEveryQueue) {
  for (const bool threads : {false, true}) {
    for (const int64_t tiles : {1, 3, 4}) {
      const TemporaryFolder folder;
      const Memory memory(tiles);
      TileFile file(folder.path(), memory.span(), kTile, threads ? make_thread_queue() : nullptr);
      std::vector<std::vector<char>> all;
      std::vector<int64_t> offsets;
      int64_t offset = 0;
      for (const size_t bytes : {1, 4095, 4096, 8192, 8193, 100000, 65536, 17}) {
        all.push_back(random_bytes(bytes, static_cast<unsigned>(bytes)));
        offsets.push_back(offset);
        file.write(offset, all.back().data(), static_cast<int64_t>(bytes));
        offset += (static_cast<int64_t>(bytes) + TileFile::kAlign - 1) / TileFile::kAlign * TileFile::kAlign;
      }
      for (size_t i = all.size(); i-- > 0;) {
        std::vector<char> back(all[i].size() + 1, 'x');
        file.read(offsets[i], back.data(), static_cast<int64_t>(all[i].size()));
        EXPECT_EQ(back.back(), 'x');
        back.pop_back();
        EXPECT_EQ(back, all[i]) << threads << " " << tiles << " " << i;
      }
      EXPECT_TRUE(folder.empty());
    }
  }
}

TEST(TileFile, WritesOverWhatWasThere) {
  const TemporaryFolder folder;
  const Memory memory(2);
  TileFile file(folder.path(), memory.span(), kTile);
  for (unsigned round = 0; round < 5; ++round) {
    const std::vector<char> bytes = random_bytes(50000, round);
    file.write(0, bytes.data(), 50000);
    std::vector<char> back(50000);
    file.read(0, back.data(), 50000);
    EXPECT_EQ(back, bytes);
  }
}

TEST(TileFile, AFullDiskAndAShortReadAreSaid) {
  const TemporaryFolder folder;
  const Memory memory(2);
  const std::vector<char> bytes(100000);
  const auto write_with = [&](int64_t result) {
    return message_of([&] {
      TileFile file(folder.path(), memory.span(), kTile, std::make_unique<FakeQueue>(result));
      file.write(0, bytes.data(), 100000);
    });
  };
  EXPECT_NE(write_with(-ENOSPC).find("No space left on device (ENOSPC)"), std::string::npos);
  EXPECT_NE(write_with(-EIO).find("(EIO)"), std::string::npos);
  EXPECT_NE(write_with(TileFile::kAlign).find("it took 4096 of 8192 bytes"), std::string::npos);
  EXPECT_EQ(write_with(kTile), "none");
  const auto read_with = [&](int64_t result) {
    return message_of([&] {
      TileFile file(folder.path(), memory.span(), kTile, std::make_unique<FakeQueue>(result));
      std::vector<char> back(3 * kTile);
      file.read(0, back.data(), 3 * kTile);
    });
  };
  EXPECT_NE(read_with(TileFile::kAlign).find("4096 of 8192 bytes came"), std::string::npos);
  EXPECT_NE(read_with(0).find(folder.path().string()), std::string::npos);
  EXPECT_NE(read_with(-EIO).find("(EIO)"), std::string::npos);
}

TEST(TileFile, OfTwoWritesToOnePlaceTheSecondStays) {
  const TemporaryFolder folder;
  const Memory memory(4);
  TileFile file(folder.path(), memory.span(), kTile, std::make_unique<test::LazyQueue>());
  const std::vector<char> old = random_bytes(kTile, 1), fresh = random_bytes(kTile, 2);
  file.write(0, old.data(), kTile);
  file.write(0, fresh.data(), kTile);
  std::vector<char> back(kTile);
  file.read(0, back.data(), kTile);
  EXPECT_EQ(back, fresh);
}

// A write returns before it is done, so the next read at the latest throws its failure.
TEST(TileFile, AFailureBehindTheScenesIsThrownByTheNextCall) {
  const TemporaryFolder folder;
  const Memory memory(4);
  TileFile file(folder.path(), memory.span(), kTile, std::make_unique<FakeQueue>(-ENOSPC));
  std::vector<char> bytes(kTile);
  EXPECT_NO_THROW(file.write(0, bytes.data(), kTile));
  EXPECT_THROW(file.read(0, bytes.data(), kTile), IoError);
}

TEST(TileFile, ALimitOnFilesIsSaid) {
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 16, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  for (const bool threads : {false, true}) {
    const TemporaryFolder folder;
    const Memory memory(4);
    TileFile file(folder.path(), memory.span(), kTile, threads ? make_thread_queue() : nullptr);
    std::vector<char> bytes(1 << 18);
    EXPECT_NE(message_of([&] { file.write(0, bytes.data(), 1 << 18); }).find("(EFBIG)"), std::string::npos);
    EXPECT_TRUE(folder.empty());
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, previous);
}

TEST(TileFile, AFolderThatIsNotThereIsSaid) {
  const Memory memory(1);
  const std::string said = message_of([&] { TileFile("/nowhere/at/all", memory.span(), kTile); });
  EXPECT_NE(said.find("/nowhere/at/all: No such file or directory"), std::string::npos) << said;
}

// Once open, the file does not need its folder.
TEST(TileFile, OutlivesItsFolder) {
  const Memory memory(2);
  const TemporaryFolder folder;
  TileFile file(folder.path(), memory.span(), kTile);
  fs::remove_all(folder.path());
  const std::vector<char> bytes = random_bytes(30000, 1);
  file.write(0, bytes.data(), 30000);
  std::vector<char> back(30000);
  file.read(0, back.data(), 30000);
  EXPECT_EQ(back, bytes);
}

}  // namespace
}  // namespace moelab
