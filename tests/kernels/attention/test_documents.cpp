// Documents that share a row: each has the attention, positions and routing that it has when it is alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/document_attention.h"
#include "kernels/attention/rope.h"
#include "kernels/memory/ledger.h"
#include "kernels/moe/expert_block.h"
#include "kernels/moe/router.h"
#include "tests/cuda_device.h"
#include "tests/kernels/attention/attention_reference.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::close_to;

using Lengths = std::vector<int64_t>;  // of the documents in a row; the rest of the row is padding

Tensor documents_of(const std::vector<Lengths>& rows, int64_t S) {
  Tensor documents = at::full({static_cast<int64_t>(rows.size()), S}, -1, at::kInt);
  for (size_t b = 0; b < rows.size(); ++b) {
    int64_t start = 0;
    for (const int64_t length : rows[b]) {
      documents[static_cast<int64_t>(b)].narrow(0, start, length).fill_(start);
      start += length;
    }
  }
  return documents;
}

// Calls body(row, first position, length) for each document.
template <class Body>
void for_documents(const std::vector<Lengths>& rows, const Body& body) {
  for (size_t b = 0; b < rows.size(); ++b) {
    int64_t start = 0;
    for (const int64_t length : rows[b]) {
      body(static_cast<int64_t>(b), start, length);
      start += length;
    }
  }
}

struct AttentionCase {
  const char* name;
  std::vector<Lengths> rows;
  int64_t S, heads, kv, hd;
  at::ScalarType dtype;
  AttentionSpan span = {};
  c10::Device device = c10::kCPU;

  int64_t longest() const {
    int64_t longest = 1;
    for (const Lengths& row : rows) longest = std::max(longest, *std::ranges::max_element(row));
    return longest;
  }
};

std::vector<AttentionCase> attention_cases(c10::Device device) {
  std::vector<AttentionCase> cases;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::vector<AttentionCase> all = {
        {"mixed", {{5, 1, 130, 40}, {176}}, 176, 4, 2, 32, dtype},
        {"padded", {{100, 7}, {3, 3, 3}}, 140, 2, 2, 32, dtype},
        {"at_block_ends", {{128, 128, 1, 127}}, 384, 2, 1, 64, dtype},
        {"around_block_ends", {{127, 2, 127, 129}}, 385, 2, 1, 32, dtype},
        {"many", {Lengths(40, 8), Lengths(20, 16)}, 320, 2, 2, 32, dtype},
        {"no_tiles", {{60, 33}}, 100, 2, 1, 24, dtype},
        {"window", {{200, 90, 30}}, 330, 4, 2, 32, dtype, {1, 50}},
        {"blocks", {{200, 90, 31}}, 321, 2, 2, 32, dtype, {16, 3}},
        {"window_past_all", {{60, 70}}, 130, 2, 2, 32, dtype, {1, 130}},
    };
    cases.insert(cases.end(), all.begin(), all.end());
  }
  for (AttentionCase& c : cases) c.device = device;
  return cases;
}

class DocumentAttention : public ::testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    MOELAB_NEEDS(c.device);
    at::manual_seed(41);
    const auto B = static_cast<int64_t>(c.rows.size());
    qkv = at::randn({B, c.S, c.heads + 2 * c.kv, c.hd}).to(c.dtype);
    grad = at::randn({B, c.S, c.heads * c.hd}).to(c.dtype);
    // nothing uses the result at padding: no gradient comes back to it
    grad.masked_fill_(documents_of(c.rows, c.S).lt(0).unsqueeze(2), 0);
  }

  struct Result {
    Tensor out, dqkv;
  };
  Result packed(const Tensor& documents, const DocumentStarts& starts = {}) const {
    const Tensor x = qkv.to(c.device).detach().clone().requires_grad_();
    const Tensor begins = documents.defined() ? documents.to(c.device) : documents;
    const Tensor out = causal_attention(x, c.heads, c.kv, AttentionPath::flash, c.span, begins, starts);
    out.backward(grad.to(c.device));
    return {out.detach().cpu(), x.grad().cpu()};
  }
  // Where the host knows how many documents there are, and that none has more than `longest` tokens.
  Result packed_with_starts(const Tensor& documents, int64_t longest) const {
    return packed(documents,
                  document_starts(documents.to(c.device), longest, document_room(documents, longest)));
  }

  // Each document by itself in float64; zeros at padding.
  Result reference() const {
    Result want{at::zeros(grad.sizes(), at::kDouble), at::zeros(qkv.sizes(), at::kDouble)};
    for_documents(c.rows, [&](int64_t b, int64_t start, int64_t length) {
      const auto of = [&](const Tensor& x) { return x.narrow(0, b, 1).narrow(1, start, length); };
      const Tensor x = of(qkv).to(at::kDouble).requires_grad_();
      const Tensor out = test::materialised_attention(x, c.heads, c.kv, test::hidden_keys(x.size(1), c.span));
      out.backward(of(grad).to(at::kDouble));
      of(want.out).copy_(out.detach());
      of(want.dqkv).copy_(x.grad());
    });
    return want;
  }

  // Whether the documents match `want`, and the gradient at padding too.
  ::testing::AssertionResult matches(const Result& got, const Result& want) const {
    const Tensor padding = documents_of(c.rows, c.S).lt(0).unsqueeze(2);
    const auto forward = test::tolerance(c.dtype, 8 * c.S, 3),
               backward = test::tolerance(c.dtype, 24 * c.S, 6);
    const auto part = [&](const Result& result, int64_t first, int64_t heads) {
      return result.dqkv.narrow(2, first, heads);
    };
    std::vector<::testing::AssertionResult> results = {
        close_to(got.out.masked_fill(padding, 0), want.out, forward)};
    for (const auto& [first, heads] :
         {std::pair{int64_t{0}, c.heads}, {c.heads, c.kv}, {c.heads + c.kv, c.kv}}) {
      results.push_back(close_to(part(got, first, heads), part(want, first, heads), backward));
    }
    for (const auto& result : results) {
      if (!result) return result;
    }
    return ::testing::AssertionSuccess();
  }

  const AttentionCase c = GetParam();
  Tensor qkv, grad;
};

TEST_P(DocumentAttention, IsThatOfEachDocumentAlone) {
  const Result want = reference();
  const Tensor padding = documents_of(c.rows, c.S).lt(0).view({-1, c.S, 1, 1});
  // what it sees: only itself
  const Tensor values =
      qkv.narrow(2, c.heads + c.kv, c.kv).repeat_interleave(c.heads / c.kv, 2).flatten(2).to(at::kDouble);
  for (const int64_t longest : {c.S, c.longest()}) {
    const Result got = packed(documents_of(c.rows, c.S), {.longest = longest});
    EXPECT_TRUE(matches(got, want)) << longest;
    EXPECT_TRUE(close_to(got.out.masked_fill(~padding.squeeze(3), 0),
                         values.masked_fill(~padding.squeeze(3), 0), test::tolerance(c.dtype, 1, 3)));
    EXPECT_EQ(got.dqkv.masked_select(padding.expand_as(got.dqkv)).abs().sum().item<float>(), 0);
  }
}

// Flash attention on a GPU takes the documents as sequences. Padding there sees padding.
TEST_P(DocumentAttention, IsTheSameWhereTheHostKnowsTheDocuments) {
  const Result want = reference();
  const Tensor documents = documents_of(c.rows, c.S), padding = documents.lt(0).view({-1, c.S, 1, 1});
  for (const int64_t longest : {c.S, c.longest()}) {
    const Result got = packed_with_starts(documents, longest);
    EXPECT_TRUE(matches(got, want)) << longest;
    EXPECT_TRUE(got.out.isfinite().all().item<bool>());
    EXPECT_EQ(got.dqkv.masked_select(padding.expand_as(got.dqkv)).abs().sum().item<float>(), 0);
  }
}

// Broken variants: boundaries between documents off by one token, either way, and no documents at all.
TEST_P(DocumentAttention, OneTokenOffDoesNotPass) {
  if (c.device.is_cuda()) {
    MOELAB_NEEDS_CUDA_ALLOCATOR();  // LibTorch's flash attention writes up to 15 numbers behind its logsumexp
  }
  const Result want = reference();
  for (const int64_t off : {-1, 1}) {
    std::vector<Lengths> rows = c.rows;
    for (Lengths& row : rows) {
      if (row.size() < 2) continue;
      size_t at = 0;  // where both documents are longer than a token, and short enough to tell
      while (at + 2 < row.size() && (row[at] < 2 || row[at + 1] < 2)) ++at;
      row[at] += off;
      row[at + 1] -= off;
    }
    const Tensor documents = documents_of(rows, c.S);
    EXPECT_FALSE(matches(packed(documents), want)) << off;
    EXPECT_FALSE(matches(packed_with_starts(documents, c.S), want)) << off;
  }
  if (c.span.block * c.span.blocks > 3) {
    EXPECT_FALSE(matches(packed({}), want));
  }
}

TEST_P(DocumentAttention, HasTheSameBitsOnAnyNumberOfThreads) {
  const Tensor documents = documents_of(c.rows, c.S);
  const auto on = [&](int threads) {
    const test::ThreadScope scope(threads);
    return packed(documents);
  };
  const Result one = on(1), two = on(2);
  EXPECT_TRUE(test::bitwise_equal(one.out, two.out));
  EXPECT_TRUE(test::bitwise_equal(one.dqkv, two.dqkv));
}

TEST_P(DocumentAttention, ReadsNoMemoryThatItDidNotWrite) {
  const Tensor documents = documents_of(c.rows, c.S);
  const Result want = packed(documents);
  at::globalContext().setDeterministicAlgorithms(true, true);  // fills new tensors: bytes with 255, a NaN
  const Result got = packed(documents);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_TRUE(test::bitwise_equal(got.out, want.out));
  EXPECT_TRUE(test::bitwise_equal(got.dqkv, want.dqkv));
}

// Counted by hand: rows of ten tokens, documents of at most four; padding is cut at every fourth place.
TEST(DocumentStarts, AreThoseOfDocumentsAndStretchesOfPadding) {
  const Tensor documents = documents_of({{3, 4, 3}, {2}, {1, 4}, {}}, 10);
  constexpr int64_t kLongest = 4;
  const std::vector<int32_t> want = {0, 3, 7, 10, 12, 14, 18, 20, 21, 25, 28, 30, 34, 38};
  const int64_t room = document_room(documents, kLongest);
  EXPECT_EQ(room, 16);
  const DocumentStarts got = document_starts(documents, kLongest, room);
  EXPECT_EQ(got.longest, kLongest);
  ASSERT_EQ(got.starts_N1.numel(), room + 1);
  for (int64_t i = 0; i <= room; ++i) {
    EXPECT_EQ(got.starts_N1[i].item<int32_t>(), i < std::ssize(want) ? want[i] : 40) << i;
  }
}

TEST(DocumentStarts, RoomIsTheSameForBatchesOfMostTexts) {
  EXPECT_EQ(document_room(documents_of({Lengths(8, 128), {1024}}, 1024), 1024), 2 * (2 + 8));
  EXPECT_EQ(document_room(at::empty({2, 1024}, at::TensorOptions(c10::kMeta).dtype(at::kInt)), 1024),
            2 * (2 + 8));
  EXPECT_EQ(document_room(documents_of({Lengths(20, 2), {1024}}, 1024), 1024), 4 * (2 + 8));
}

const auto case_name = [](const auto& info) {
  return std::string(info.param.name) + "_" + c10::toString(info.param.dtype);
};
INSTANTIATE_TEST_SUITE_P(Shapes, DocumentAttention, ::testing::ValuesIn(attention_cases(c10::kCPU)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, DocumentAttention,
                         ::testing::ValuesIn(attention_cases(c10::Device(c10::kCUDA, 0))), case_name);

TEST(DocumentAttentionMemory, IsKnownToMeta) {
  install_allocators();
  const auto bytes = [](at::Device device, at::ScalarType dtype) {
    Ledger& ledger = device.is_meta() ? meta_ledger() : cpu_ledger();
    const auto options = at::TensorOptions().device(device);
    const Tensor qkv = at::zeros({2, 400, 4, 32}, options.dtype(dtype)).requires_grad_();
    const Tensor grad = at::ones({2, 400, 2 * 32}, options.dtype(dtype));
    const Tensor starts = at::zeros({2, 400}, options.dtype(at::kInt));
    const int64_t before = ledger.allocated();
    ledger.reset_peaks();
    causal_attention(qkv, 2, 1, AttentionPath::flash, {}, starts).backward(grad);
    return ledger.tensor_peak() - before;
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // the result, its logsumexp and the gradient
    const int64_t element = dtype == at::kFloat ? 4 : 2, want = 2 * 400 * (6 * 32 * element + 2 * 4);
    EXPECT_EQ(bytes(at::kCPU, dtype), want) << dtype;
    EXPECT_EQ(bytes(at::kMeta, dtype), want) << dtype;
  }
}

TEST(DocumentAttentionChecks, RefusesWhatDescribesNoRow) {
  const Tensor qkv = at::zeros({2, 5, 3, 4});
  const auto call = [&](const Tensor& documents, AttentionPath path = AttentionPath::flash) {
    causal_attention(qkv, 1, 1, path, {}, documents);
  };
  EXPECT_NO_THROW(call(at::zeros({2, 5}, at::kInt)));
  EXPECT_THROW(call(at::zeros({5}, at::kInt)), c10::Error);
  EXPECT_THROW(call(at::zeros({2, 5}, at::kLong)), c10::Error);
  EXPECT_THROW(call(at::zeros({5, 2}, at::kInt).t()), c10::Error);
  EXPECT_THROW(call(at::zeros({2, 5}, at::TensorOptions(at::kMeta).dtype(at::kInt))), c10::Error);
  EXPECT_THROW(call(at::zeros({2, 5}, at::kInt), AttentionPath::materialised), c10::Error);
}

// One row of the table per token gives the bits of each document's own rotation.
TEST(DocumentRope, TurnsEachDocumentAsItIsAlone) {
  at::manual_seed(42);
  const std::vector<Lengths> rows = {{5, 1, 30}, {20, 16}};
  const Tensor qkv = at::randn({2, 36, 4, 16}), table = rope_table(36, 16, 10000, at::kCPU);
  const Tensor place = at::arange(36) - documents_of(rows, 36).to(at::kLong);
  const Tensor got = rope_(qkv.clone(), 3, table.index_select(0, place.flatten()));
  for_documents(rows, [&](int64_t b, int64_t start, int64_t length) {
    const auto of = [&](const Tensor& x) { return x.narrow(0, b, 1).narrow(1, start, length).contiguous(); };
    const Tensor want = rope_(of(qkv), 3, rope_table(length, 16, 10000, at::kCPU));
    EXPECT_TRUE(test::bitwise_equal(of(got), want)) << b << " " << start;
    if (start > 0) {
      EXPECT_FALSE(test::bitwise_equal(of(rope_(qkv.clone(), 3, table)), want));
    }
  });
  EXPECT_THROW(rope_(qkv.clone(), 3, rope_table(35, 16, 10000, at::kCPU)), c10::Error);
}

// Compared with the same router over the tokens that are not padding, sequence by sequence.
TEST(Padding, IsCountedNowhere) {
  at::manual_seed(43);
  const int64_t S = 20, E = 4;
  const std::vector<Lengths> rows = {{9, 4}, {20}, {1}};
  const Tensor documents = documents_of(rows, S);
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    const Tensor x = at::randn({3 * S, 16}).requires_grad_(), w = at::randn({E, 16}).requires_grad_();
    RouterOptions options{score, RouterChoice::token, 2, true, S, 0, documents};
    const RouterOutput got = route(x, w, std::nullopt, std::nullopt, options);
    const Tensor r = at::randn(got.weights_TK.sizes());
    ((got.weights_TK * r).sum() + 3 * got.balance_loss + 0.5 * got.z_loss).backward();

    const Tensor xs = x.detach().clone().requires_grad_(), ws = w.detach().clone().requires_grad_();
    Tensor loss = at::zeros({}), load = at::zeros({E});
    const double all = 9 + 4 + 20 + 1;
    double balance = 0, z = 0;
    const std::vector<int64_t> used = {13, 20, 1};
    for (int64_t b = 0; b < 3; ++b) {
      options = {score, RouterChoice::token, 2, true, used[b], 0, {}};
      const RouterOutput one = route(xs.narrow(0, b * S, used[b]), ws, std::nullopt, std::nullopt, options);
      const double share = static_cast<double>(used[b]) / all;
      loss = loss + (one.weights_TK * r.narrow(0, b * S, used[b])).sum() + 3 * share * one.balance_loss +
             0.5 * share * one.z_loss;
      load += one.load_E;
      balance += share * one.balance_loss.item<double>();
      z += share * one.z_loss.item<double>();
      EXPECT_TRUE(at::equal(got.ids_TK.narrow(0, b * S, used[b]), one.ids_TK));
    }
    loss.backward();
    const auto tolerance = test::tolerance(at::kFloat, 4 * 16, 16);
    EXPECT_TRUE(at::equal(got.load_E, load));
    EXPECT_NEAR(got.balance_loss.item<double>(), balance, 1e-6 * balance);
    EXPECT_NEAR(got.z_loss.item<double>(), z, 1e-6 * z);
    EXPECT_TRUE(close_to(x.grad(), xs.grad(), tolerance));
    EXPECT_TRUE(close_to(w.grad(), ws.grad(), tolerance));
    const Tensor padding = documents.lt(0).flatten();
    EXPECT_TRUE(got.ids_TK.index({padding}).eq(-1).all().item<bool>());
    EXPECT_EQ(got.weights_TK.index({padding}).abs().sum().item<float>(), 0);
    EXPECT_EQ(x.grad().index({padding}).abs().sum().item<float>(), 0);
  }
}

// Otherwise every router would make its own copy, forward and backward, in every layer.
TEST(Padding, IsMarkedWhereTheTokensAre) {
  const Tensor x = at::zeros({8, 4}), w = at::zeros({4, 4});
  RouterOptions options{.sequence = 8, .documents = at::zeros({1, 8}, at::kInt)};
  EXPECT_NO_THROW(route(x, w, std::nullopt, std::nullopt, options));
  options.documents = options.documents.to(at::kMeta);
  EXPECT_THROW(route(x, w, std::nullopt, std::nullopt, options), c10::Error);
}

TEST(Padding, ExpertsSeeNone) {
  at::manual_seed(44);
  const int64_t T = 12, E = 3, D = 32, F = 32;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor x = at::randn({T, D}).to(dtype), w13 = at::randn({E, 2 * F, D}).to(dtype),
                 w2 = at::randn({E, D, F}).to(dtype), weights = at::rand({T, 2});
    Tensor ids = at::stack({at::arange(T).remainder(E), (at::arange(T) + 1).remainder(E)}, 1).to(at::kInt);
    const int64_t used = 7;
    ids.narrow(0, used, T - used).fill_(-1);
    const Routes routes = dropless_routes(ids, E);
    EXPECT_EQ(routes.offsets_E1[E].item<int>(), 2 * used);
    EXPECT_TRUE(routes.row_TK.narrow(0, used, T - used).eq(-1).all().item<bool>());
    at::globalContext().setDeterministicAlgorithms(true, true);  // memory that was not written is NaN
    const Tensor xg = x.clone().requires_grad_();
    const Tensor got = expert_block(xg, weights, routes, w13, w2);
    got.backward(at::ones_like(got));
    at::globalContext().setDeterministicAlgorithms(false, false);
    const Routes few = dropless_routes(ids.narrow(0, 0, used).contiguous(), E);
    const Tensor xf = x.narrow(0, 0, used).clone().requires_grad_();
    const Tensor want = expert_block(xf, weights.narrow(0, 0, used).contiguous(), few, w13, w2);
    want.backward(at::ones_like(want));
    const auto tolerance = test::tolerance(dtype, 4 * D, 8);
    EXPECT_TRUE(close_to(got.narrow(0, 0, used), want, tolerance));
    EXPECT_TRUE(close_to(xg.grad().narrow(0, 0, used), xf.grad(), tolerance));
    EXPECT_EQ(got.narrow(0, used, T - used).abs().sum().item<float>(), 0);
    EXPECT_EQ(xg.grad().narrow(0, used, T - used).abs().sum().item<float>(), 0);
  }
}

}  // namespace
}  // namespace moelab
