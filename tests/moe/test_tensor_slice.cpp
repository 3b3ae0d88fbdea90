#include "moe/settings/rank_model.h"
#include "moe/tensor_slice.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moe/settings/error.h"
#include "moe/transformer.h"
#include "tests/moe/small_model.h"

namespace moelab {
namespace {

ModelSettings model_with_all_weights() {
  ModelSettings m = test::small_model();
  m.vocab = 72;
  m.heads = 12;
  m.kv_heads = 6;
  m.head_dim = 4;
  m.d_expert = 18;
  m.shared_experts = 2;
  m.qk_norm = QkNorm::head;
  return m;
}

TEST(TensorSlice, IsByHeadAndByHiddenWidth) {
  const ModelSettings m = model_with_all_weights();
  const auto second_of_three = [&](std::string_view name) { return tensor_slice(m, name, 1, 3); };
  const TensorSlice qkv = second_of_three("blocks.7.qkv");
  EXPECT_EQ(qkv.dim, 0);
  EXPECT_EQ(qkv.ranges, (std::vector<Range>{{16, 16}, {48 + 8, 8}, {72 + 8, 8}}));
  const TensorSlice experts = second_of_three("blocks.0.experts.w13"),
                    shared = second_of_three("blocks.0.shared.w13"),
                    down = second_of_three("blocks.0.experts.w2");
  EXPECT_EQ(experts.dim, 1);
  EXPECT_EQ(experts.ranges, (std::vector<Range>{{6, 6}, {18 + 6, 6}}));
  EXPECT_EQ(shared.dim, 0);
  EXPECT_EQ(shared.ranges, (std::vector<Range>{{12, 12}, {36 + 12, 12}}));
  EXPECT_EQ(down.dim, 2);
  EXPECT_EQ(down.ranges, (std::vector<Range>{{6, 6}}));
  EXPECT_EQ(second_of_three("embedding"), (TensorSlice{0, {{24, 24}}}));
  EXPECT_EQ(second_of_three("head"), (TensorSlice{0, {{24, 24}}}));
  for (const char* name : {"blocks.0.router", "blocks.0.q_norm", "blocks.0.moe_norm"}) {
    EXPECT_TRUE(second_of_three(name).ranges.empty()) << name;
  }
}

// Every element of a sliced weight is on exactly one rank, and the slices fit rank_model.
TEST(TensorSlice, RanksTogetherHaveEveryElementOnce) {
  for (const bool dense : {false, true}) {
    ModelSettings m = model_with_all_weights();
    if (dense) m.experts = 0;
    for (const int64_t ranks : {1, 2, 3, 6}) {
      const Transformer model(m, {}, {}), of_rank(rank_model(m, ranks), {}, {});
      for (size_t i = 0; i < model.parameters().size(); ++i) {
        const Parameter& p = model.parameters()[i];
        at::Tensor index = at::arange(p.value.numel()).view(p.value.sizes()), seen;
        std::vector<at::Tensor> parts;
        for (int64_t r = 0; r < ranks; ++r) {
          parts.push_back(cut(index, tensor_slice(m, p.name, r, ranks)));
          EXPECT_EQ(parts.back().sizes(), of_rank.parameters()[i].value.sizes()) << p.name;
          EXPECT_TRUE(parts.back().is_contiguous());
        }
        if (tensor_slice(m, p.name, 0, ranks).ranges.empty()) continue;
        for (at::Tensor& part : parts) part = part.flatten();
        EXPECT_TRUE(at::equal(std::get<0>(at::cat(parts).sort()), index.flatten())) << p.name;
      }
    }
  }
}

// Parts of slices of a tensor whose elements are their own places.
TEST(TensorPart, LiesInTheWholeInRuns) {
  const at::Tensor place = at::arange(3 * 8 * 5).view({3, 8, 5});
  for (const TensorSlice& slice :
       {TensorSlice{}, TensorSlice{0, {{1, 2}}}, TensorSlice{1, {{1, 2}, {5, 3}}}, TensorSlice{1, {{0, 8}}},
        TensorSlice{1, {{2, 2}, {4, 1}}}, TensorSlice{2, {{0, 1}, {3, 2}}}}) {
    const int64_t all = cut(place, slice).numel();
    for (const auto& [first, end] :
         {std::pair(int64_t{0}, all), std::pair(int64_t{0}, int64_t{7}), std::pair(all / 3, all),
          std::pair(int64_t{4}, all / 2), std::pair(all / 2, all / 2)}) {
      const TensorPart part{{3, 8, 5}, first, slice};
      std::vector<int64_t> places;
      int64_t last = -1;
      for_each_run(part, end - first, [&](int64_t from, int64_t count) {
        EXPECT_NE(from, last) << "two runs that are one";
        last = from + count;
        for (int64_t i = 0; i < count; ++i) places.push_back(from + i);
      });
      EXPECT_TRUE(at::equal(at::tensor(places, at::kLong), cut(place, part, end - first)))
          << slice.dim << " from " << first << " to " << end;
    }
  }
}

TEST(TensorSlice, RefusesWhatDoesNotDivide) {
  ModelSettings m = model_with_all_weights();
  EXPECT_THROW(rank_model(m, 4), UserError);  // 6 key/value heads
  EXPECT_THROW(rank_model(m, 5), UserError);
  EXPECT_NO_THROW(rank_model(m, 6));
  m.d_expert = 20;
  EXPECT_THROW(rank_model(m, 6), UserError);
  m.d_expert = 18;
  m.vocab = 70;
  EXPECT_THROW(rank_model(m, 6), UserError);
  m.vocab = 72;
  m.qk_norm = QkNorm::full;
  EXPECT_NO_THROW(rank_model(m, 1));
  EXPECT_THROW(rank_model(m, 2), UserError);
}

}  // namespace
}  // namespace moelab
