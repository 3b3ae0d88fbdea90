#include "tests/train/data/fixtures.h"
#include "train/data/dataset.h"

namespace moelab {
namespace {

using namespace test;

constexpr int64_t kVocab = 65536;

std::vector<int64_t> all_tokens(const TokenRange& range) {
  std::vector<int64_t> ids(static_cast<size_t>(range.size()));
  range.copy(0, ids);
  return ids;
}

std::vector<int64_t> integers(int64_t first, int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

TEST(Dataset, JoinsTheShardsOfAFolderInOrderOfTheirNames) {
  const TemporaryFolder folder;
  write_llmc(folder / "train_01.bin", counting(50, 30));
  write_nanogpt(folder / "train_00.bin", counting(30));
  write_nanogpt(folder / "val.bin", counting(20, 1000));
  const Dataset data = open_dataset(folder.string(), "", kVocab, 8);
  ASSERT_EQ(data.train.size(), 1u);
  ASSERT_EQ(data.validation.size(), 1u);
  EXPECT_EQ(all_tokens(data.train[0].tokens), integers(0, 80));
  EXPECT_EQ(all_tokens(data.validation[0].tokens), integers(1000, 20));
  std::vector<int64_t> across(4);
  data.train[0].tokens.copy(28, across);
  EXPECT_EQ(across, integers(28, 4));
  EXPECT_FALSE(data.tokenizer);
}

TEST(Dataset, CountsWindowsThatShareTheirLastTarget) {
  const TemporaryFolder folder;
  write_nanogpt(folder / "a.bin", counting(17));
  const TokenRange range(std::vector{std::make_shared<const Shard>(folder / "a.bin", kVocab)});
  EXPECT_EQ(range.windows(4), 4);
  EXPECT_EQ(range.part(0, 16).windows(4), 3);
  EXPECT_EQ(range.windows(16), 1);
  EXPECT_EQ(range.windows(17), 0);
  EXPECT_THROW(range.part(10, 8), std::out_of_range);
}

TEST(Dataset, HoldsOutTheLastTwentiethOfEachSource) {
  const TemporaryFolder folder;
  write_nanogpt(folder / "a.bin", counting(2000));
  const Dataset data = open_dataset(folder.string(), "", kVocab, 8);
  EXPECT_EQ(all_tokens(data.train[0].tokens), integers(0, 1900));
  EXPECT_EQ(all_tokens(data.validation[0].tokens), integers(1900, 100));
}

TEST(Dataset, HoldsOutAtLeastOneSequence) {
  const TemporaryFolder folder;
  write_nanogpt(folder / "a.bin", counting(100));
  const Dataset data = open_dataset((folder / "a.bin").string(), "", kVocab, 40);
  EXPECT_EQ(all_tokens(data.train[0].tokens), integers(0, 59));
  EXPECT_EQ(all_tokens(data.validation[0].tokens), integers(59, 41));
}

TEST(Dataset, NamedValidationReplacesTheSplit) {
  const TemporaryFolder folder;
  write_nanogpt(folder / "a/train.bin", counting(100));
  write_nanogpt(folder / "a/val.bin", counting(50, 500));
  write_nanogpt(folder / "b/x.bin", counting(30, 900));
  const Dataset data = open_dataset((folder / "a").string(), (folder / "b").string(), kVocab, 8);
  EXPECT_EQ(all_tokens(data.train[0].tokens), integers(0, 100));
  ASSERT_EQ(data.validation.size(), 1u);
  EXPECT_EQ(all_tokens(data.validation[0].tokens), integers(900, 30));
}

TEST(Dataset, ReadsAWeightedMix) {
  const TemporaryFolder folder;
  write_nanogpt(folder / "a/train.bin", counting(100));
  write_nanogpt(folder / "b/train.bin", counting(200, 1000));
  write_nanogpt(folder / "b/val.bin", counting(20, 3000));
  const std::string mix = "0.7*" + (folder / "a").string() + ",2*" + (folder / "b").string();
  const Dataset data = open_dataset(mix, "", kVocab, 8);
  ASSERT_EQ(data.train.size(), 2u);
  EXPECT_EQ(data.train[0].weight, 0.7);
  EXPECT_EQ(data.train[1].weight, 2);
  EXPECT_EQ(data.train[0].tokens.size(), 91);
  EXPECT_EQ(data.train[1].tokens.size(), 200);
  EXPECT_EQ(all_tokens(data.validation[0].tokens), integers(91, 9));
  EXPECT_EQ(all_tokens(data.validation[1].tokens), integers(3000, 20));
}

TEST(Dataset, ANameWithCommasAndStarsIsAName) {
  const TemporaryFolder folder;
  write_nanogpt(folder / "0.5*a,b/train.bin", counting(100));
  EXPECT_EQ(open_dataset((folder / "0.5*a,b").string(), "", kVocab, 8).train.size(), 1u);
}

TEST(Dataset, RefusesBadMixes) {
  const TemporaryFolder folder;
  write_nanogpt(folder / "a/train.bin", counting(100));
  const std::string a = (folder / "a").string();
  const auto refuse = [](const std::string& mix, std::vector<std::string> parts) {
    parts.push_back("data.path");
    expect_user_error([&] { open_dataset(mix, "", kVocab, 8); }, parts);
  };
  refuse("", {"empty"});
  refuse(a + "," + a, {"no weight", "0.7*DIR1"});
  refuse("x*" + a, {"number above 0"});
  refuse("-1*" + a, {"number above 0"});
  refuse("0*" + a, {"number above 0"});
  refuse("nan*" + a, {"number above 0"});
  refuse("1*", {"no path"});
  refuse("0.5*" + a + ",", {"no weight"});
  refuse("0.5*" + a + ",0.5*/none", {"no such file or folder", "/none"});
}

TEST(Dataset, RefusesMissingAndEmptyFolders) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& name, const std::string& validation) {
    return [=, path = (folder / name).string()] { open_dataset(path, validation, kVocab, 8); };
  };
  expect_user_error(open("none", ""), {"data.path", "no such file or folder", "prepare_data.py"});
  write_bytes(folder / "empty/notes.txt", "hello");
  expect_user_error(open("empty", ""), {"no *.bin in"});
  write_nanogpt(folder / "onlyval/val.bin", counting(100));
  expect_user_error(open("onlyval", ""), {"val*.bin but no train*.bin"});
  expect_user_error(open("onlyval/val.bin", "/none"), {"data.validation", "/none"});
}

TEST(Dataset, SaysWhatTooLittleDataWouldDoFor) {
  const TemporaryFolder folder;
  write_nanogpt(folder / "split/x.bin", counting(100));
  write_nanogpt(folder / "whole/train.bin", counting(100));
  write_nanogpt(folder / "whole/val.bin", counting(10));
  const auto open = [&](const std::string& name, int64_t sequence) {
    return [=, path = (folder / name).string()] { open_dataset(path, "", kVocab, sequence); };
  };
  expect_user_error(open("split", 50), {"100 tokens", "at least 102", "train.sequence=49 or less"});
  EXPECT_NO_THROW(open("split", 49)());
  expect_user_error(open("whole", 10), {"val*.bin has 10 tokens", "at least 11", "train.sequence=9 or less"});
  EXPECT_NO_THROW(open("whole", 9)());
  expect_user_error(
      [&] { open_dataset((folder / "split").string(), (folder / "whole").string(), kVocab, 10); },
      {"data.validation", "has 10 tokens"});
  expect_user_error(
      [&] { open_dataset((folder / "whole").string(), (folder / "split").string(), kVocab, 100); },
      {"data.path", "at least 101", "train.sequence=99 or less"});
}

TEST(Dataset, ExposesTheTokenizerAndRefusesTwo) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    write_nanogpt(folder / name / "train.bin", counting(100));
    write_bytes(folder / name / "tokenizer.json", "{\"one\": 1}");
  }
  const std::string mix = "1*" + (folder / "a").string() + ",1*" + (folder / "b").string();
  EXPECT_EQ(open_dataset(mix, "", kVocab, 8).tokenizer, folder / "a/tokenizer.json");
  const Dataset single = open_dataset((folder / "b/train.bin").string(), "", kVocab, 8);
  EXPECT_EQ(single.tokenizer, folder / "b/tokenizer.json");
  write_bytes(folder / "b/tokenizer.json", "{\"two\": 2}");
  expect_user_error([&] { open_dataset(mix, "", kVocab, 8); }, {"tokenizer.json", "differ"});
}

}  // namespace
}  // namespace moelab
