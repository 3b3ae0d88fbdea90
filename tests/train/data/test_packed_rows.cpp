#include "train/data/packed_rows.h"

#include <ATen/ATen.h>

#include <map>

#include "kernels/memory/ledger.h"
#include "tests/train/data/fixtures.h"
#include "train/data/token_stream.h"

namespace moelab {
namespace {

using namespace test;

constexpr int64_t kRow = 24, kEnd = 60000;

Batch read(const RowSource& rows, int64_t first, int64_t count) {
  Batch batch = rows.allocate(count);
  EXPECT_TRUE(rows.fill(first, batch, [] { return false; }));
  return batch;
}

// Documents of 2, 3, … 20 tokens, their end included, with counting ids, so that each token shows its
// position.
class PackedRowsTest : public testing::Test {
 protected:
  std::vector<Source> sources() {
    std::vector<uint16_t> ids;
    for (int64_t tokens = 1; tokens < 20; ++tokens) {
      for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<uint16_t>(100 * tokens + i));
      ids.push_back(kEnd);
    }
    write_nanogpt(folder_ / "train.bin", ids);
    return {{"made", 1, TokenRange({std::make_shared<const Shard>(folder_ / "train.bin", 65536)})}};
  }
  std::unique_ptr<const RowSource> rows(int64_t longest = 8) {
    return std::make_unique<PackedRows>(sources(), PackingOptions{kRow, longest, 8, kEnd, 5});
  }
  TokenStream stream(ReadAhead ahead) { return {rows(), 6, ahead}; }

  TemporaryFolder folder_;
};

TEST_F(PackedRowsTest, LeaveBetweenRowsWhenAskedTo) {
  const auto packed = rows();
  Batch batch = packed->allocate(4);
  int asked = 0;
  EXPECT_FALSE(packed->fill(10, batch, [&] { return ++asked == 3; }));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(at::equal(batch.tokens.narrow(0, 0, 2), read(*packed, 10, 2).tokens));
  EXPECT_TRUE(batch.targets.narrow(0, 2, 2).eq(-1).all().item<bool>()) << "rows were read after that";
}

TEST_F(PackedRowsTest, DocumentsStandOneBehindAnotherWithTheirTargets) {
  const auto packed = rows();
  int64_t filled = 0;
  std::map<int64_t, int> targets;
  for (int64_t n = 0; n < 40; ++n) {
    const Batch batch = read(*packed, n, 1);
    const at::Tensor tokens = batch.tokens[0], target = batch.targets[0], documents = batch.documents[0];
    EXPECT_EQ(batch.documents.scalar_type(), at::kInt);
    EXPECT_EQ(batch.filled, packed->filled(n, 1));
    filled = 0;
    for (int64_t i = 0; i < kRow; ++i) {
      const int64_t start = documents[i].item<int64_t>(), token = tokens[i].item<int64_t>(),
                    next = target[i].item<int64_t>();
      if (start < 0) {
        EXPECT_EQ(next, -1);
        EXPECT_TRUE(i + 1 == kRow || documents[i + 1].item<int64_t>() < 0) << "padding is at the end";
        continue;
      }
      ++filled;
      EXPECT_NE(token, kEnd) << "no document is learned from its end";
      EXPECT_TRUE(next == token + 1 || next == kEnd);
      if (next == kEnd) {
        EXPECT_EQ(token % 100, token / 100 - 1) << "the end is the last token's target";
      }
      const bool first = start == i;
      EXPECT_TRUE(first || documents[i - 1].item<int64_t>() == start);
      if (!first) {
        EXPECT_EQ(tokens[i - 1].item<int64_t>(), token - 1);
      }
      if (first) {
        EXPECT_EQ(token % 100 % 8, 0) << "passages are cut every 8 tokens of a document";
      }
    }
    EXPECT_EQ(batch.filled, filled);
  }
}

TEST_F(PackedRowsTest, ADocumentAsLongAsTheRowIsWhole) {
  const auto packed = rows(kRow);
  for (int64_t n = 0; n < 40; ++n) {
    const Batch batch = read(*packed, n, 1);
    for (int64_t i = 0; i < kRow; ++i) {
      if (batch.documents[0][i].item<int64_t>() == i) {
        EXPECT_EQ(batch.tokens[0][i].item<int64_t>() % 100, 0);
      }
    }
  }
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_TRUE(at::equal(a.tokens, b.tokens));
  EXPECT_TRUE(at::equal(a.targets, b.targets));
  EXPECT_TRUE(at::equal(a.documents, b.documents));
  EXPECT_EQ(a.filled, b.filled);
  EXPECT_EQ(a.share, b.share);
}

TEST_F(PackedRowsTest, SharesOfAStepAddUpHoweverItIsCut) {
  TokenStream plain = stream({0, 0});
  for (int64_t step = 0; step < 10; ++step) {
    const Batch whole = plain.read(step, 0, 6);
    EXPECT_EQ(whole.share, 1);
    for (const int64_t rows : {1, 2, 3}) {
      double share = 0;
      std::vector<at::Tensor> tokens, documents;
      for (int64_t first = 0; first < 6; first += rows) {
        const Batch part = plain.read(step, first, rows);
        share += part.share;
        EXPECT_NEAR(part.share, static_cast<double>(part.filled) / static_cast<double>(whole.filled), 1e-15);
        tokens.push_back(part.tokens);
        documents.push_back(part.documents);
      }
      EXPECT_NEAR(share, 1, 1e-12);
      EXPECT_TRUE(at::equal(at::cat(tokens), whole.tokens));
      EXPECT_TRUE(at::equal(at::cat(documents), whole.documents));
    }
  }
}

TEST_F(PackedRowsTest, TheOrderOfBatchesIsThatOfAnyNumberOfWorkers) {
  TokenStream plain = stream({0, 0});
  for (const int64_t workers : {1, 2, 5}) {
    TokenStream ahead = stream({workers, 3});
    for (int64_t step = 100; step < 130; ++step) {
      for (int64_t first = 0; first < 6; first += 2)
        expect_same(plain.read(step, first, 2), ahead.read(step, first, 2));
    }
    EXPECT_GT(ahead.foreseen(), 80);
  }
}

TEST_F(PackedRowsTest, NothingToLearnFromIsAMistake) {
  write_nanogpt(folder_ / "ends.bin", {kEnd, kEnd, kEnd});
  const Source source{"data.path: ends", 1,
                      TokenRange({std::make_shared<const Shard>(folder_ / "ends.bin", 65536)})};
  expect_user_error(
      [&] {
        PackedRows({source}, {kRow, 8, 8, kEnd, 5});
      },
      {"data.path: ends", "no document of two tokens", "60000"});
}

TEST_F(PackedRowsTest, LiesOutsideTheBudget) {
  install_allocators();
  const auto packed = rows();
  const int64_t device = cpu_ledger().allocated(), host = cpu_ledger(Home::host).allocated();
  const Batch batch = read(*packed, 0, 4);
  EXPECT_EQ(cpu_ledger().allocated(), device);
  EXPECT_EQ(cpu_ledger(Home::host).allocated() - host, 4 * kRow * (8 + 8 + 4));
}

}  // namespace
}  // namespace moelab
