#include "train/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/memory/ledger.h"
#include "tests/temporary_folder.h"
#include "tests/user_error.h"
#include "train/checkpoint/hash.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;

const bool allocators_installed = (install_allocators(), true);  // before any tensor exists

// All types, strided tensors, tensors without elements or axes; the values depend on the step.
std::vector<TensorEntry> tensors_of(int64_t step) {
  const at::Tensor base = at::arange(24).reshape({4, 6}) + step;
  std::vector<TensorEntry> entries;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                          at::kChar, at::kByte, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    entries.push_back({std::string("typed.") + c10::toString(type), base.to(at::kFloat).to(type)});
  }
  entries.push_back({"bool", base.remainder(2).to(at::kBool)});
  entries.push_back({"transposed", base.to(at::kFloat).t()});
  entries.push_back({"none", at::empty({0, 5})});
  entries.push_back({"scalar", at::scalar_tensor(static_cast<double>(step), at::kFloat)});
  return entries;
}

CheckpointContent content_of(int64_t step) {
  CheckpointContent content;
  content.state = {step, step * 1000, R"({"seed":18446744073709551615,"mean":0.1,"list":[1,-2]})"};
  content.model = tensors_of(step);
  content.optimizer = {{"m", at::full({3}, step, at::kFloat)}};
  content.files = {{"config.yaml", "seed: 1\n"}, {"tokenizer.json", "{}"}};
  content.commit = "0123abc";
  return content;
}

// Bitwise equality, including NaN payloads and signs of zero.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const std::span<const std::byte> left = bytes_of(a), right = bytes_of(b);
  return std::equal(left.begin(), left.end(), right.begin(), right.end());
}

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_all(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

TEST(Xxh3, AgreesWithThePublishedVectorAndWithItself) {
  EXPECT_EQ(xxh3_hex({}), "99aa06d3014798d86001c324468d497f");
  const std::string text(10'000, 'q');
  Xxh3 pieces;
  for (size_t at = 0; at < text.size(); at += 999) {
    pieces.update(std::as_bytes(std::span(text)).subspan(at, std::min<size_t>(999, text.size() - at)));
  }
  EXPECT_EQ(pieces.hex(), xxh3_hex(std::as_bytes(std::span(text))));
}

TEST(SafetensorsFile, RoundTripsEveryTypeBitwise) {
  const TemporaryFolder scratch;
  const fs::path path = scratch.path() / "a.safetensors";
  const FileDigest written = write_safetensors(path, tensors_of(3), {{"format", "pt"}});
  EXPECT_EQ(written, digest_file(path));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  for (const TensorEntry& entry : tensors_of(3)) {
    EXPECT_TRUE(same_bits(file.tensor(entry.name), entry.tensor.contiguous())) << entry.name;
  }
  EXPECT_FALSE(same_bits(file.tensor("scalar"), at::scalar_tensor(4.0, at::kFloat)));
  EXPECT_NE(user_error([&] { file.tensor("x"); }).find("no tensor 'x'"), std::string::npos);
}

TEST(SafetensorsFile, ReadsUnalignedTensorsAndRefusesImpossibleBooleans) {
  const TemporaryFolder scratch;
  const std::string json =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
      R"("c":{"dtype":"BOOL","shape":[2],"data_offsets":[5,7]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(json.size());
  const float value = 1.5f;
  file += json + "\x07" + std::string(reinterpret_cast<const char*>(&value), 4) + "\x01\x02";
  write_all(scratch.path() / "f", file);
  const SafetensorsFile opened(scratch.path() / "f");
  EXPECT_EQ(opened.tensor("b").item<float>(), 1.5f);
  EXPECT_NE(user_error([&] { opened.tensor("c"); }).find("BOOL"), std::string::npos);
}

TEST(Restore, CopiesInPlaceIntoAnyStrides) {
  const TemporaryFolder scratch;
  write_safetensors(scratch.path() / "f", tensors_of(5));
  std::vector<TensorEntry> into = tensors_of(0);
  into[1].tensor.requires_grad_(true);
  std::vector<void*> before;
  for (const TensorEntry& entry : into) before.push_back(entry.tensor.data_ptr());
  restore(CheckpointTensors(SafetensorsFile(scratch.path() / "f")), into);
  const std::vector<TensorEntry> expected = tensors_of(5);
  for (size_t i = 0; i < into.size(); ++i) {
    EXPECT_EQ(into[i].tensor.data_ptr(), before[i]) << into[i].name;
    EXPECT_TRUE(same_bits(into[i].tensor.detach().contiguous(), expected[i].tensor.contiguous()))
        << into[i].name;
  }
}

TEST(Restore, NamesWhatDiffersAndThenTouchesNothing) {
  const TemporaryFolder scratch;
  const std::vector<TensorEntry> saved{{"a", at::ones({2})}, {"b", at::ones({2, 3})}};
  write_safetensors(scratch.path() / "f", saved);
  const CheckpointTensors file(SafetensorsFile(scratch.path() / "f"));
  const at::Tensor a = at::zeros({2}), b = at::zeros({2, 3});
  const auto message = [&](std::vector<TensorEntry> into) {
    return user_error([&] { restore(file, into); });
  };
  EXPECT_NE(message({{"a", a}, {"b", b}, {"c", b}}).find("lacks 1 ('c')"), std::string::npos);
  EXPECT_NE(message({{"a", a}}).find("has besides 1 ('b')"), std::string::npos);
  EXPECT_NE(message({{"a", a}, {"b", at::zeros({3, 2})}}).find("'b' is F32 [2, 3] there, but F32 [3, 2]"),
            std::string::npos);
  EXPECT_NE(message({{"a", a}, {"b", b.to(at::kBFloat16)}}).find("but BF16 [2, 3]"), std::string::npos);
  EXPECT_EQ(a.sum().item<float>(), 0.0f);
}

TEST(Checkpoint, RoundTripsAndIsASnapshot) {
  const TemporaryFolder scratch;
  CheckpointContent content = content_of(7);
  CheckpointWriter writer(scratch.path() / "run" / "checkpoints", 3);
  writer.save(content);
  for (const TensorEntry& entry : content.model) entry.tensor.zero_();  // training goes on
  writer.wait();
  EXPECT_EQ(writer.costs().last.step, 7);
  EXPECT_GT(writer.costs().last.bytes, 1000);

  const LoadedCheckpoint loaded = load_latest(scratch.path() / "run" / "checkpoints");
  EXPECT_EQ(loaded.path.filename(), "step-7");
  EXPECT_EQ(loaded.state.step, 7);
  EXPECT_EQ(loaded.state.tokens, 7000);
  EXPECT_EQ(nlohmann::json::parse(loaded.state.json), nlohmann::json::parse(content.state.json));
  EXPECT_EQ(loaded.commit, "0123abc");
  EXPECT_EQ(loaded.files, content.files);
  for (const TensorEntry& entry : tensors_of(7)) {
    EXPECT_TRUE(same_bits(loaded.model.tensor(entry.name), entry.tensor.contiguous())) << entry.name;
  }
  EXPECT_TRUE(same_bits(loaded.optimizer.tensor("m"), content.optimizer[0].tensor));
}

TEST(Checkpoint, SnapshotIsChargedToTheHost) {
  const TemporaryFolder scratch;
  CheckpointContent content;
  content.model = {{"w", at::ones({1 << 20}, at::kFloat)}};
  cpu_ledger(Home::host).reset_peaks();
  cpu_ledger().reset_peaks();
  const int64_t device = cpu_ledger().allocated(), host = cpu_ledger(Home::host).allocated();
  CheckpointWriter writer(scratch.path(), 1);
  writer.save(content);
  writer.wait();
  EXPECT_GE(cpu_ledger(Home::host).peak() - host, 4 << 20);
  EXPECT_EQ(cpu_ledger(Home::host).allocated(), host);  // given back
  EXPECT_LT(cpu_ledger().peak() - device, 1 << 20);
}

TEST(Checkpoint, KeepsTheNewestAndPointsAtIt) {
  const TemporaryFolder scratch;
  CheckpointWriter writer(scratch.path(), 2);
  for (const int64_t step : {9, 10, 11}) writer.save(content_of(step));
  writer.wait();
  EXPECT_EQ(names_in(scratch.path()), (Names{"LATEST", "step-10", "step-11"}));
  EXPECT_EQ(read_all(scratch.path() / "LATEST"), "step-11\n");
}

TEST(Checkpoint, ReplacesTheSameStepAndSetsAnAbandonedBranchAside) {
  const TemporaryFolder scratch;
  CheckpointWriter writer(scratch.path(), 5);
  for (const int64_t step : {10, 20, 30}) writer.save(content_of(step));
  CheckpointContent again = content_of(20);
  again.commit = "second";
  writer.save(again);
  writer.wait();
  EXPECT_EQ(names_in(scratch.path()), (Names{"LATEST", "step-10", "step-20", "step-30.superseded"}));
  EXPECT_EQ(load_latest(scratch.path()).commit, "second");
}

TEST(Checkpoint, ASecondWriterIsRefusedAndTheNextCleansUp) {
  const TemporaryFolder scratch;
  {
    CheckpointWriter writer(scratch.path(), 2);
    EXPECT_NE(user_error([&] { CheckpointWriter second(scratch.path(), 2); }).find("another run"),
              std::string::npos);
  }
  fs::create_directories(scratch.path() / "step-3.tmp-1234" / "x");
  fs::create_directories(scratch.path() / "step-03");
  write_all(scratch.path() / "LATEST.tmp-99", "");
  write_all(scratch.path() / "notes.tmp-1", "the user's own");
  CheckpointWriter writer(scratch.path(), 2);
  EXPECT_EQ(names_in(scratch.path()), (Names{"notes.tmp-1", "step-03"}));
  EXPECT_TRUE(list_checkpoints(scratch.path()).empty());
}

TEST(Checkpoint, AFailedSaveSurfacesOnceAndHarmsNothing) {
  const TemporaryFolder scratch;
  CheckpointWriter writer(scratch.path(), 1);
  writer.save(content_of(1));
  CheckpointContent bad = content_of(2);
  bad.files[std::string(300, 'n')] = "";
  writer.save(bad);
  const std::string message = user_error([&] { writer.save(content_of(3)); });
  EXPECT_NE(message.find("ENAMETOOLONG"), std::string::npos) << message;
  EXPECT_NE(message.find("step-2.tmp-"), std::string::npos) << message;
  EXPECT_EQ(names_in(scratch.path()), (Names{"LATEST", "step-1"}));
  writer.save(content_of(4));
  writer.wait();
  EXPECT_EQ(load_latest(scratch.path()).state.step, 4);
}

void flip(const fs::path& path, int64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(bit / 8);
  const int byte = file.get();
  file.seekp(bit / 8);
  file.put(static_cast<char>(byte ^ (1 << (bit % 8))));
}

// What is said on standard error while it lives.
class Said {
 public:
  Said() : before_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Said() { std::cerr.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

// Flips every bit of every file of a small checkpoint, one at a time: manifest, headers and data.
TEST(Checkpoint, DetectsEveryFlippedBit) {
  const TemporaryFolder scratch;
  for (const int64_t step : {1, 2}) write_checkpoint(scratch.path(), content_of(step), 2);
  const fs::path folder = scratch.path() / "step-2";
  int64_t flips = 0;
  for (const std::string& name : names_in(folder)) {
    const int64_t bits = static_cast<int64_t>(fs::file_size(folder / name)) * 8;
    for (int64_t bit = 0; bit < bits; ++bit, ++flips) {
      flip(folder / name, bit);
      const Said said;
      ASSERT_EQ(load_latest(scratch.path()).state.step, 1) << name << " bit " << bit;
      ASSERT_NE(said.text().find((folder / name).string() + ": "), std::string::npos) << bit << said.text();
      fs::rename(scratch.path() / "step-2.damaged", folder);
      flip(folder / name, bit);
    }
  }
  EXPECT_EQ(load_latest(scratch.path()).state.step, 2);
  EXPECT_GT(flips, 10'000);
  std::cout << flips << " flipped bits, all detected\n";
}

TEST(Checkpoint, DetectsFilesCutMissingAndSwapped) {
  const TemporaryFolder scratch;
  write_checkpoint(scratch.path(), content_of(1), 1);
  const fs::path folder = scratch.path() / "step-1";
  const Names names = names_in(folder);
  ASSERT_EQ(names.size(), 6u);
  for (const std::string& name : names) {
    const std::string text = read_all(folder / name);
    write_all(folder / name, text.substr(0, text.size() - 1));
    EXPECT_THROW(load_checkpoint(folder), UserError) << name;
    write_all(folder / name, text + "\n");
    EXPECT_THROW(load_checkpoint(folder), UserError) << name;
    fs::remove(folder / name);
    EXPECT_THROW(load_checkpoint(folder), UserError) << name;
    fs::create_directory(folder / name);
    EXPECT_THROW(load_checkpoint(folder), UserError) << name;
    fs::remove(folder / name);
    write_all(folder / name, text);
  }
  EXPECT_NO_THROW(load_checkpoint(folder));
  fs::rename(folder / "model.safetensors", folder / "x");
  fs::rename(folder / "optimizer.safetensors", folder / "model.safetensors");
  fs::rename(folder / "x", folder / "optimizer.safetensors");
  EXPECT_THROW(load_checkpoint(folder), UserError);
}

TEST(Checkpoint, FallsBackToTheNewestGoodOne) {
  const TemporaryFolder scratch;
  for (const int64_t step : {1, 2, 3, 10}) write_checkpoint(scratch.path(), content_of(step), 9);
  write_all(scratch.path() / "step-10" / "state.json", "{}");
  fs::remove(scratch.path() / "step-3" / "manifest.json");
  testing::internal::CaptureStderr();
  EXPECT_EQ(load_latest(scratch.path()).state.step, 2);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("step-10/state.json: damaged"), std::string::npos) << said;
  EXPECT_NE(said.find("fell back to the checkpoint " + (scratch.path() / "step-2").string()),
            std::string::npos);
  EXPECT_EQ(names_in(scratch.path()),
            (Names{"LATEST", "step-1", "step-10.damaged", "step-2", "step-3.damaged"}));
}

TEST(Checkpoint, FallsBackFromTheNamedOneToEarlierOnes) {
  const TemporaryFolder scratch;
  for (const int64_t step : {1, 2, 3, 10}) write_checkpoint(scratch.path(), content_of(step), 9);
  EXPECT_EQ(load_checkpoint_or_earlier(scratch.path() / "step-3").state.step, 3);
  EXPECT_EQ(load_checkpoint_or_earlier(scratch.path() / "step-3/").state.step, 3);
  fs::remove(scratch.path() / "step-3" / "manifest.json");
  testing::internal::CaptureStderr();
  EXPECT_EQ(load_checkpoint_or_earlier(scratch.path() / "step-3").state.step, 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("fell back"), std::string::npos);
  // not in a folder of checkpoints, so there is nothing to fall back to
  fs::rename(scratch.path() / "step-10", scratch.path() / "best");
  EXPECT_EQ(load_checkpoint_or_earlier(scratch.path() / "best").state.step, 10);
  write_all(scratch.path() / "best" / "state.json", "{}");
  EXPECT_NE(user_error([&] { load_checkpoint_or_earlier(scratch.path() / "best"); }).find("damaged"),
            std::string::npos);
  EXPECT_NE(user_error([&] { load_checkpoint_or_earlier(scratch.path() / "step-7"); }).find("step-7"),
            std::string::npos);
}

TEST(Checkpoint, WithNoneLeftItIsTheUsersError) {
  const TemporaryFolder scratch;
  EXPECT_NE(user_error([&] { load_latest(scratch.path() / "absent"); }).find("no checkpoint"),
            std::string::npos);
  write_checkpoint(scratch.path(), content_of(1), 1);
  fs::create_directory(scratch.path() / "step-1.damaged");
  write_all(scratch.path() / "step-1" / "manifest.json", "");
  EXPECT_NE(user_error([&] { load_latest(scratch.path()); }).find("damaged"), std::string::npos);
  EXPECT_TRUE(fs::exists(scratch.path() / "step-1.damaged-2"));
  EXPECT_NE(user_error([&] { load_checkpoint(scratch.path()); }).find("not a checkpoint"), std::string::npos);
}

}  // namespace
}  // namespace moelab
