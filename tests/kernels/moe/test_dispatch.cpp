#include <gtest/gtest.h>

#include <map>

#include "kernels/moe/dispatch.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/dispatch.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

at::Tensor ids_of(std::vector<std::vector<int>> rows) {
  at::Tensor ids =
      at::empty({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.at(0).size())}, at::kInt);
  for (size_t t = 0; t < rows.size(); ++t) {
    for (size_t k = 0; k < rows[t].size(); ++k) ids[t][k] = rows[t][k];
  }
  return ids;
}

std::vector<int> flat(const at::Tensor& t) {
  const at::Tensor c = t.cpu().contiguous();
  return {c.const_data_ptr<int>(), c.const_data_ptr<int>() + c.numel()};
}

TEST(Dispatch, DroplessGroupsRoutesByExpertInTokenOrder) {
  const Routes r = dropless_routes(ids_of({{2, 0}, {0, 1}, {2, 1}, {0, 2}}), 4);
  EXPECT_EQ(flat(r.offsets_E1), (std::vector<int>{0, 3, 5, 8, 8}));
  EXPECT_EQ(flat(r.row_TK), (std::vector<int>{5, 0, 1, 3, 6, 4, 2, 7}));
  EXPECT_EQ(r.rows, 8);
  EXPECT_EQ(r.dropped.item<float>(), 0);
}

TEST(Dispatch, CapacityDropsTheLaterTokensOfEachSequence) {
  // two sequences of three tokens, two experts, capacity two per sequence
  const Routes r = capacity_routes(ids_of({{0}, {0}, {0}, {1}, {0}, {1}}), 2, 3, 2);
  EXPECT_EQ(flat(r.row_TK), (std::vector<int>{0, 1, -1, 6, 2, 7}));
  EXPECT_EQ(flat(r.offsets_E1), (std::vector<int>{0, 4, 8}));
  EXPECT_EQ(r.dropped.item<float>(), 1);
}

TEST(Dispatch, CapacityIsCeilOfTheFairShare) {
  EXPECT_EQ(expert_capacity(256, 2, 4, 1.25), 160);
  EXPECT_EQ(expert_capacity(512, 1, 4, 1.25), 160);
  EXPECT_EQ(expert_capacity(10, 2, 3, 1.0), 7);
  EXPECT_EQ(expert_capacity(1, 2, 64, 1.25), 1);
  EXPECT_EQ(expert_capacity(8, 2, 4, 100), 8);  // an expert never takes a token twice
}

class DispatchCases : public ::testing::TestWithParam<test::DispatchCase> {
  void SetUp() override { MOELAB_NEEDS(GetParam().device); }
};

TEST_P(DispatchCases, EveryRouteHasItsOwnRowInItsExpertsGroup) {
  const auto c = GetParam();
  const at::Tensor ids = make_input(c);
  const Routes r = test::make_routes(ids, c.S, c.E, c.capacity_factor);
  std::map<int, int> uses;
  const auto offsets = flat(r.offsets_E1), rows = flat(r.row_TK), id = flat(ids);
  int dropped = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) {
      ++dropped;
      continue;
    }
    EXPECT_EQ(++uses[rows[i]], 1);
    EXPECT_GE(rows[i], offsets[id[i]]);
    EXPECT_LT(rows[i], offsets[id[i] + 1]);
  }
  EXPECT_EQ(dropped, r.dropped.item<float>());
}

INSTANTIATE_TEST_SUITE_P(Cases, DispatchCases,
                         ::testing::ValuesIn(test::on_every_device(test::cases_for(test::Use::test,
                                                                                   test::dispatch_cases()))),
                         [](const auto& info) { return test::short_name(info); });

TEST(Dispatch, SplittingTheBatchChangesNothing) {
  at::manual_seed(2);
  const int64_t S = 16, B = 4, E = 4, C = 6;
  const at::Tensor ids = std::get<1>(at::rand({B * S, E}).topk(2, 1)).to(at::kInt).contiguous();
  const at::Tensor whole = capacity_routes(ids, E, S, C).row_TK.ge(0);
  for (int64_t b = 0; b < B; ++b) {
    const at::Tensor part = capacity_routes(ids.narrow(0, b * S, S).contiguous(), E, S, C).row_TK.ge(0);
    EXPECT_TRUE(at::equal(part, whole.narrow(0, b * S, S)));
  }
}

TEST(Dispatch, RefusesAnIdThatNoExpertHas) { EXPECT_THROW(dropless_routes(ids_of({{0, 4}}), 4), c10::Error); }

}  // namespace
}  // namespace moelab
