// Checkpoints that several ranks write together, each its parts, and that any other number of ranks reads.
#include "train/checkpoint/checkpoint_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "tests/moe/thread_ranks.h"
#include "tests/temporary_folder.h"
#include "tests/user_error.h"
#include "train/checkpoint/checkpoint.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;

// Elements [begin, end) of `rank`; the second rank has none.
std::pair<int64_t, int64_t> range_of(int64_t elements, int64_t rank, int64_t ranks) {
  const auto border = [&](int64_t r) { return r == 2 ? elements / ranks : elements * r / ranks; };
  return {ranks > 2 ? border(rank) : elements * rank / ranks,
          ranks > 2 ? border(rank + 1) : elements * (rank + 1) / ranks};
}

TensorEntry part_of(const std::string& name, const at::Tensor& whole, int64_t rank, int64_t ranks) {
  const auto [begin, end] = range_of(whole.numel(), rank, ranks);
  return {name, whole.view(-1).narrow(0, begin, end - begin).clone(), TensorPart{whole.sizes().vec(), begin}};
}

at::Tensor weight(int64_t step) {
  return at::arange(3 * 4 * 5).view({3, 4, 5}).to(at::kFloat) + step * 1000.0;
}
at::Tensor moment(int64_t step) { return at::arange(61).to(at::kBFloat16) - static_cast<double>(step); }
at::Tensor bias(int64_t step) { return at::full({7}, step, at::kFloat); }

CheckpointContent content_of(int64_t step, int64_t rank, int64_t ranks) {
  CheckpointContent content;
  content.state = {step, step * 10, "null"};
  content.model = {part_of("w", weight(step), rank, ranks), {"bias", bias(step), {}, rank > 0}};
  content.optimizer = {part_of("w.m", moment(step), rank, ranks)};
  content.files = {{"config.yaml", "a: 1\n"}};
  return content;
}

void save(const fs::path& folder, int64_t step, int64_t ranks) {
  test::ThreadRanks(ranks).run(
      [&](Communicator& rank) { write_checkpoint(folder, content_of(step, rank.rank(), ranks), 2, rank); });
}

void expect_readable(const fs::path& folder, int64_t step, int64_t ranks) {
  const LoadedCheckpoint loaded = load_latest(folder);
  ASSERT_EQ(loaded.state.step, step);
  EXPECT_TRUE(at::equal(loaded.model.tensor("w"), weight(step)));
  EXPECT_TRUE(at::equal(loaded.optimizer.tensor("w.m"), moment(step)));
  for (int64_t r = 0; r < ranks; ++r) {
    const CheckpointContent want = content_of(step, r, ranks);
    CheckpointContent into = content_of(0, r, ranks);
    restore(loaded.model, into.model);
    restore(loaded.optimizer, into.optimizer);
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(into.model[i].tensor, want.model[i].tensor)) << r;
    EXPECT_TRUE(at::equal(into.optimizer[0].tensor, want.optimizer[0].tensor)) << r;
  }
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(RanksCheckpoint, AnyNumberOfRanksReadsWhatAnyOtherWrote) {
  for (const int64_t written : {1, 2, 3, 4}) {
    const TemporaryFolder scratch;
    save(scratch.path(), 5, written);
    for (const int64_t read : {1, 2, 3, 4}) expect_readable(scratch.path(), 5, read);
  }
}

TEST(RanksCheckpoint, EachRankWritesWhatItOwnsAndTheFirstTheRest) {
  const TemporaryFolder scratch;
  save(scratch.path(), 3, 3);
  EXPECT_EQ(names_in(scratch.path() / "step-3"),
            (std::vector<std::string>{"config.yaml", "manifest.json", "model-0.safetensors",
                                      "model-1.safetensors", "model-2.safetensors", "optimizer-0.safetensors",
                                      "optimizer-1.safetensors", "optimizer-2.safetensors", "state.json"}));
  const auto held = [&](int64_t rank) {
    std::vector<std::string> names;
    const SafetensorsFile file(scratch.path() / "step-3" /
                               ("model-" + std::to_string(rank) + ".safetensors"));
    for (const SafetensorsInfo& info : file.header().tensors) names.push_back(info.name);
    return names;
  };
  EXPECT_EQ(held(0), (std::vector<std::string>{"bias", "w"}));
  EXPECT_EQ(held(1), std::vector<std::string>{});
  EXPECT_EQ(held(2), std::vector<std::string>{"w"});
}

// Rank 1 finds its file in the way; then the same step is saved without it.
TEST(RanksCheckpoint, IsCompleteOnlyWhenEveryRankHasWritten) {
  const TemporaryFolder scratch;
  save(scratch.path(), 1, 3);
  std::vector<std::string> said(3);
  test::ThreadRanks(3).run([&](Communicator& rank) {
    CheckpointContent content = content_of(2, rank.rank(), 3);
    if (rank.rank() == 1)
      content.model.push_back({"x", at::ones({2}, at::kComplexFloat), TensorPart{{4}, 0}});
    said[rank.rank()] = user_error([&] { write_checkpoint(scratch.path(), content, 2, rank); });
  });
  EXPECT_NE(said[1].find("cannot be written"), std::string::npos) << said[1];
  for (const size_t other : {0, 2})
    EXPECT_NE(said[other].find("step-2: not saved, because rank 1 could not"), std::string::npos)
        << said[other];
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"LATEST", "step-1"}));
  expect_readable(scratch.path(), 1, 2);
  save(scratch.path(), 2, 3);
  expect_readable(scratch.path(), 2, 3);
}

TEST(RanksCheckpoint, RanksAtDifferentStepsSaveNothing) {
  const TemporaryFolder scratch;
  EXPECT_THROW(test::ThreadRanks(2).run([&](Communicator& rank) {
    write_checkpoint(scratch.path(), content_of(4 + rank.rank(), rank.rank(), 2), 2, rank);
  }),
               c10::Error);
  EXPECT_TRUE(list_checkpoints(scratch.path()).empty());
}

TEST(RanksCheckpoint, WritersOfAllRanksSaveWhileTheyGoOn) {
  const TemporaryFolder scratch;
  test::ThreadRanks(3).run([&](Communicator& rank) {
    CheckpointWriter writer(scratch.path(), 2, rank);
    for (const int64_t step : {1, 2, 3}) {
      const CheckpointContent content = content_of(step, rank.rank(), 3);
      writer.save(content);
      for (const TensorEntry& entry : content.model) entry.tensor.zero_();  // training goes on
    }
    writer.wait();
    EXPECT_EQ(writer.costs().count, 3);
  });
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"LATEST", "step-2", "step-3"}));
  expect_readable(scratch.path(), 3, 2);
}

// What a manifest says of a file with 6 of w's 10 elements, and of one with 4.
std::string refused(const TensorPart& first, const TensorPart& second, int64_t elements = 4) {
  const TemporaryFolder scratch;
  std::vector<SafetensorsFile> files;
  std::vector<std::map<std::string, ManifestTensor>> tensors;
  for (const auto& [part, count] : {std::pair(first, int64_t{6}), std::pair(second, elements)}) {
    const fs::path path = scratch.path() / ("f" + std::to_string(files.size()));
    write_safetensors(path, {{"w", at::ones({count})}});
    files.emplace_back(path);
    tensors.push_back({{"w", {SafetensorsType::f32, {count}, "", part}}});
  }
  try {
    const CheckpointTensors whole(std::move(files), tensors, "here");
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(CheckpointTensors, RefusesPartsThatDoNotMakeAWhole) {
  EXPECT_EQ(refused({{2, 5}, 0}, {{2, 5}, 6}), "");
  EXPECT_EQ(refused({{10}, 4}, {{10}, 0}), "");
  for (const auto& text :
       {refused({{10}, 0}, {{10}, 5}), refused({{10}, 0}, {{10}, 7}), refused({{10}, 0}, {{10}, 0}),
        refused({{10}, -1}, {{10}, 6}), refused({{11}, 0}, {{11}, 6}), refused({{9}, 0}, {{9}, 6})})
    EXPECT_EQ(text, "here: damaged: the parts of tensor 'w' do not make it whole");
  EXPECT_EQ(refused({{2, 5}, 0}, {{5, 2}, 6}),
            "here: damaged: the parts of tensor 'w' are of two shapes or types");
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(refused({{huge, huge}, 0}, {{huge, huge}, 6}), "here: damaged: a tensor of an impossible shape");
}

TEST(CheckpointTensors, RefusesSlicesThatAreNone) {
  const auto columns = [](int64_t first, int64_t count) { return TensorSlice{1, {{first, count}}}; };
  EXPECT_EQ(refused({{2, 5}, 0, columns(0, 3)}, {{2, 5}, 0, columns(3, 2)}), "");
  EXPECT_EQ(refused({{2, 5}, 0, columns(0, 3)}, {{2, 5}, 0, columns(2, 2)}),
            "here: damaged: the parts of tensor 'w' do not make it whole");
  for (const TensorSlice& none : {columns(4, 2), columns(-1, 2), columns(0, 1), TensorSlice{2, {{0, 2}}},
                                  TensorSlice{-1, {{0, 2}}}, TensorSlice{1, {{3, 2}, {0, 0}}}})
    EXPECT_EQ(refused({{2, 5}, 0, columns(0, 3)}, {{2, 5}, 0, none}),
              "here: damaged: a slice of tensor 'w' is none of it");
  EXPECT_EQ(refused({{2, 5}, 0, columns(0, 3)}, {{2, 5}, 1, columns(3, 2)}),
            "here: damaged: a slice of tensor 'w' is none of it");
}

// The product of each shape's sizes, and the sum of the last slice's counts, do not fit into 64 bits.
TEST(CheckpointTensors, RefusesSlicesOfImpossibleTensors) {
  const int64_t huge = int64_t{1} << 62, least = std::numeric_limits<int64_t>::min();
  const TensorSlice one{0, {{0, 1}}};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{least}, {huge, 4}})
    EXPECT_EQ(refused({shape, 0, one}, {shape, 0, one}), "here: damaged: a tensor of an impossible shape");
  const TensorSlice twice{0, {{0, huge}, {0, huge}}};
  EXPECT_EQ(refused({{huge}, 0, twice}, {{huge}, 0, twice}),
            "here: damaged: a slice of tensor 'w' is none of it");
}

TEST(CheckpointTensors, VersionThreeSaysWhichSlice) {
  Manifest manifest;
  const TensorPart part{{3, 4}, 2, {1, {{0, 1}, {2, 2}}}};
  manifest.files["model.safetensors"] = {{8, "h"}, {{"w", {SafetensorsType::f32, {7}, "x", part}}}};
  const std::string text = manifest_text(manifest);
  EXPECT_NE(text.find("\"version\": 3"), std::string::npos);
  EXPECT_EQ(parse_manifest(text, "m").files.at("model.safetensors").tensors.at("w").part, part);
}

TEST(CheckpointTensors, VersionTwoSaysWhichPartAndOneStaysAsItWas) {
  Manifest manifest;
  manifest.files["model.safetensors"] = {{8, "h"}, {{"w", {SafetensorsType::f32, {2}, "x"}}}};
  EXPECT_NE(manifest_text(manifest).find("\"version\": 1"), std::string::npos);
  EXPECT_EQ(manifest_text(manifest).find("part"), std::string::npos);
  manifest.files["model.safetensors"].tensors["w"].part = TensorPart{{3, 4}, 10};
  const std::string text = manifest_text(manifest);
  EXPECT_NE(text.find("\"version\": 2"), std::string::npos);
  const Manifest read = parse_manifest(text, "m");
  EXPECT_EQ(read.files.at("model.safetensors").tensors.at("w").part, (TensorPart{{3, 4}, 10}));
}

}  // namespace
}  // namespace moelab
