#include <sys/stat.h>
#include <unistd.h>

#include "tests/train/data/fixtures.h"
#include "train/data/shard.h"

namespace moelab {
namespace {

using namespace test;

std::vector<int64_t> all_tokens(const Shard& shard) {
  std::vector<int64_t> ids(static_cast<size_t>(shard.size()));
  shard.copy(0, ids);
  return ids;
}

// Opens a file with these bytes and expects an error that names it.
void expect_refused(std::string_view bytes, std::vector<std::string> parts, int64_t vocab = 65536) {
  const TemporaryFolder folder;
  const auto file = folder / "train.bin";
  write_bytes(file, bytes);
  parts.push_back(file.string());
  expect_user_error([&] { Shard(file, vocab); }, parts);
}

TEST(Shard, ReadsNanogptAndLlmc) {
  const TemporaryFolder folder;
  const std::vector<uint16_t> ids = {3, 0, 65535, 7, 256, 1};
  const std::vector<int64_t> expected(ids.begin(), ids.end());
  write_nanogpt(folder / "a.bin", ids);
  write_llmc(folder / "b.bin", ids);
  const Shard a(folder / "a.bin", 65536), b(folder / "b.bin", 65536);
  EXPECT_EQ(a.format(), ShardFormat::nanogpt);
  EXPECT_EQ(b.format(), ShardFormat::llmc);
  EXPECT_EQ(all_tokens(a), expected);
  EXPECT_EQ(all_tokens(b), expected);
}

TEST(Shard, CopiesAPartAndRefusesPastTheEnd) {
  const TemporaryFolder folder;
  write_llmc(folder / "a.bin", counting(100));
  const Shard shard(folder / "a.bin", 100);
  std::vector<int64_t> part(3);
  shard.copy(97, part);
  EXPECT_EQ(part, (std::vector<int64_t>{97, 98, 99}));
  EXPECT_THROW(shard.copy(98, part), std::out_of_range);
  EXPECT_THROW(shard.copy(-1, part), std::out_of_range);
}

TEST(Shard, RefusesMissingEmptyFolderAndPipe) {
  const TemporaryFolder folder;
  expect_user_error([&] { Shard(folder / "none.bin", 10); }, {"cannot open", "none.bin"});
  expect_user_error([&] { Shard(folder / ".", 10); }, {"not a regular file"});
  ASSERT_EQ(mkfifo((folder / "pipe.bin").c_str(), 0600), 0);
  expect_user_error([&] { Shard(folder / "pipe.bin", 10); }, {"not a regular file", "pipe.bin"});
  expect_refused("", {"empty"});
}

TEST(Shard, ATextTooShortToBeKnownIsGuessedAt) {
  const TemporaryFolder folder;
  write_bytes(folder / "my.txt", "hello, you");
  expect_user_error([&] { Shard(folder / "my.txt", 256); },
                    {"token id 25960 at byte 0 is outside model.vocab=256, and the largest is 31008",
                     "if this is a text, scripts/prepare_data.py makes shards of it"});
}

TEST(Shard, RefusesOddSize) { expect_refused(std::string("\x01\x00\x02", 3), {"odd size of 3 bytes"}); }

TEST(Shard, RefusesDamagedLlmcHeaders) {
  const std::string two = raw(counting(2));
  expect_refused(llmc_header(20240520, 1, 3) + two, {"truncated", "1028 bytes", "3 tokens make 1030"});
  expect_refused(llmc_header(20240520, 1, 1) + two, {"too long", "1 tokens make 1026"});
  expect_refused(llmc_header(20240520, 1, 0) + two, {"byte 8", "0"});
  expect_refused(llmc_header(20240520, 1, -5) + two, {"byte 8", "-5"});
  expect_refused(llmc_header(20240520, 1, 2147483647) + two, {"truncated", "make 4294968318"});
  expect_refused(llmc_header(20240520, 7, 2) + two, {"version 7", "byte 4"});
  expect_refused(llmc_header(20240520, 1, 2).substr(0, 500), {"truncated at byte 500"});
  expect_refused(llmc_header(20240801, 7, 2) + two, {"32-bit"});
}

TEST(Shard, RefusesForeignFiles) {
  const std::string zeros(64, '\0');
  expect_refused("Call me Ishmael. Some years ago.", {"text", "prepare_data.py"});
  expect_refused("  {\"text\": \"Call me Ishmael.\"}", {"JSON"});
  expect_refused(
      "\x7f"
      "ELF" +
          zeros,
      {"ELF"});
  expect_refused("\x93NUMPY" + zeros, {"NumPy"});
  expect_refused("PK\x03\x04" + zeros, {"zip"});
  expect_refused("PAR1" + zeros, {"Parquet"});
  expect_refused(std::string("\x1f\x8b\x08", 3) + zeros, {"gzip"});
  expect_refused(std::string("\x10\0\0\0\0\0\0\0{\"__metadata__\":", 24) + zeros, {"safetensors"});
  std::string greek;
  for (int i = 0; i < 600; ++i) greek += "\xce\xb1";
  expect_refused(greek, {"text"});
}

TEST(Shard, RefusesIdsOutsideTheVocabulary) {
  std::vector<uint16_t> ids = counting(40000);
  for (uint16_t& id : ids) id %= 100;
  ids[39000] = 100;
  expect_refused(raw(ids), {"token id 100", "at byte 78000 ", "model.vocab=100"}, 100);
  expect_refused(llmc_header(20240520, 1, 40000) + raw(ids), {"token id 100", "at byte 79024 "}, 100);
  const TemporaryFolder folder;
  write_nanogpt(folder / "a.bin", ids);
  EXPECT_EQ(Shard(folder / "a.bin", 101).size(), 40000);
}

TEST(Shard, NoticesAFileThatChangedWhileOpen) {
  const TemporaryFolder folder;
  const auto file = folder / "a.bin";
  write_nanogpt(file, counting(10000));
  const Shard shard(file, 10000);
  std::vector<int64_t> ids(10);
  shard.copy(9000, ids);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(18004).write("\xff\xff", 2);
  expect_user_error([&] { shard.copy(9000, ids); }, {"token id 65535", "at byte 18004 "});
  ASSERT_EQ(truncate(file.c_str(), 100), 0);
  expect_user_error([&] { shard.copy(9000, ids); }, {"changed from 20000 to 100 bytes", file.string()});
}

}  // namespace
}  // namespace moelab
