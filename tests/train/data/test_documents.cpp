#include "train/data/documents.h"

#include "tests/train/data/fixtures.h"

namespace moelab {
namespace {

using namespace test;

constexpr int64_t kEnd = 9;

class Documents : public testing::Test {
 protected:
  std::vector<Passage> cut(const std::vector<std::vector<uint16_t>>& shards, int64_t longest) {
    std::vector<std::shared_ptr<const Shard>> opened;
    for (size_t i = 0; i < shards.size(); ++i) {
      const auto path = folder_ / (std::to_string(i) + ".bin");
      write_nanogpt(path, shards[i]);
      opened.push_back(std::make_shared<const Shard>(path, 65536));
    }
    return cut_documents(TokenRange(opened), kEnd, longest);
  }
  TemporaryFolder folder_;
};

using Passages = std::vector<Passage>;

TEST_F(Documents, EndWithTheirLastTokenAsTarget) {
  // three documents; the second consists of its end only, the last has no end
  EXPECT_EQ(cut({{1, 2, 3, 9, 9, 4, 5}}, 100), (Passages{{0, 3}, {5, 1}}));
  EXPECT_EQ(cut({{1, 9}}, 100), (Passages{{0, 1}}));
  EXPECT_EQ(cut({{9, 9, 9}}, 100), Passages{});
  EXPECT_EQ(cut({{1}}, 100), Passages{});
}

TEST_F(Documents, LongOnesAreCut) {
  EXPECT_EQ(cut({{1, 1, 1, 1, 1, 9, 2, 2, 2, 9}}, 2), (Passages{{0, 2}, {2, 2}, {4, 1}, {6, 2}, {8, 1}}));
  EXPECT_EQ(cut({{1, 1, 1, 1, 9}}, 4), (Passages{{0, 4}}));  // no empty passage at the end
}

TEST_F(Documents, GoOnOverShards) {
  EXPECT_EQ(cut({{1, 2}, {3, 9, 4}, {5, 9}}, 100), (Passages{{0, 3}, {4, 2}}));
}

// Compares with a plain loop over tokens, across several of the reader's chunks.
TEST_F(Documents, AgreeWithAPlainLoop) {
  std::vector<uint16_t> ids;
  uint64_t random = 3;
  for (int64_t i = 0; i < 700'000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    ids.push_back((random >> 33) % 50 == 0 ? kEnd : 1);
  }
  Passages want;
  int64_t start = 0;
  for (int64_t i = 0; i <= static_cast<int64_t>(ids.size()); ++i) {
    const bool over = i == static_cast<int64_t>(ids.size());
    if (!over && ids[i] != kEnd) continue;
    const int64_t last = over ? i - 1 : i;
    while (start < last) {
      const int64_t tokens = last - start < 33 ? last - start : 33;
      want.push_back({start, tokens});
      start += tokens;
    }
    start = i + 1;
  }
  EXPECT_EQ(cut({ids}, 33), want);
}

}  // namespace
}  // namespace moelab
