#include "tests/kernels/meta/meta_parity.h"

namespace moelab {
namespace {

std::vector<Case> forward_cases() {
  return {
      {"index_select",
       [](auto& in) {
         return Tensors{in.real({T, D}).index_select(0, in.ids({40}, T))};
       }},
      {"gather",
       [](auto& in) {
         return Tensors{in.real({T, E}).gather(1, in.ids({T, K}, E))};
       },
       {0, 768}},
      {"scatter_add",
       [](auto& in) {
         return Tensors{in.real({T, E}).scatter_add(1, in.ids({T, K}, E), in.real({T, K}))};
       },
       {0, 1536}},
      {"scatter",
       [](auto& in) {
         return Tensors{in.real({T, E}).scatter(1, in.ids({T, K}, E), in.real({T, K}))};
       },
       {0, 1536}},
      {"index_add",
       [](auto& in) {
         return Tensors{in.real({T, D}).index_add(0, in.ids({40}, T), in.real({40, D}))};
       },
       {0, 512}},
      {"index_copy",
       [](auto& in) {
         const auto o = at::TensorOptions().dtype(at::kLong).device(in.device);
         return Tensors{in.real({T, D}).index_copy(0, at::arange(40, o), in.real({40, D}))};
       }},
      {"index",
       [](auto& in) {
         return Tensors{in.real({T, D}).index({in.ids({40}, T)})};
       }},
      {"index_put",
       [](auto& in) {
         return Tensors{in.real({T, D}).index_put({in.ids({40}, T)}, in.real({40, D}))};
       }},
      {"topk",
       [](auto& in) {
         auto [v, i] = in.real({T, E}).topk(K, -1);
         return Tensors{v, i};
       }},
      {"topk of columns",
       [](auto& in) {
         auto [v, i] = in.real({T, E}).topk(8, 0);
         return Tensors{v, i};
       }},
      {"cumsum",
       [](auto& in) {
         return Tensors{in.ids({T, E}, 2).cumsum(0)};
       }},
      {"one_hot",
       [](auto& in) {
         const auto o = at::TensorOptions().dtype(at::kLong).device(in.device);
         return Tensors{at::zeros({T, K, E}, o).scatter_(-1, in.ids({T, K, 1}, E), 1)};
       }},
      {"bincount", [](auto& in) { return Tensors{at::bincount(in.ids({T * K}, E), {}, E)}; }},
      {"where",
       [](auto& in) {
         const Tensor x = in.real({T, D});
         return Tensors{at::where(x > 0, x, at::zeros({}, x.options()))};
       }},
      {"where scalar",
       [](auto& in) {
         const Tensor x = in.real({T, D});
         return Tensors{at::where(x > 0, x, 0)};
       }},
      {"masked_fill",
       [](auto& in) {
         const Tensor x = in.real({T, D});
         return Tensors{x.masked_fill(x > 0, -1)};
       }},
      {"lt and sum",
       [](auto& in) {
         return Tensors{(in.ids({T, K}, E) < 2).sum()};
       },
       {1536, 1536}},
      {"softmax",
       [](auto& in) {
         return Tensors{at::softmax(in.real({T, E}), -1, at::kFloat)};
       }},
      {"sigmoid",
       [](auto& in) {
         return Tensors{at::sigmoid(in.real({T, E}))};
       }},
      {"logsumexp",
       [](auto& in) {
         return Tensors{at::logsumexp(in.real({T, E}), -1)};
       }},
      {"rms_norm",
       [](auto& in) {
         return Tensors{at::rms_norm(in.real({T, D}), {D}, in.real({D}), 1e-5)};
       },
       {0, 256}},
      {"mm",
       [](auto& in) {
         return Tensors{at::mm(in.real({T, D}), in.real({D, F}))};
       }},
      {"linear",
       [](auto& in) {
         return Tensors{at::linear(in.real({2, T / 2, D}), in.real({F, D}))};
       }},
      {"addmm_",
       [](auto& in) {
         return Tensors{in.real({T, F}).addmm_(in.real({T, D}), in.real({D, F}))};
       }},
      {"mm_out",
       [](auto& in) {
         Tensor o = in.real({T, F});
         at::mm_out(o, in.real({T, D}), in.real({D, F}));
         return Tensors{o};
       }},
      {"bmm",
       [](auto& in) {
         return Tensors{at::bmm(in.real({E, T, D}), in.real({E, D, F}))};
       }},
      {"bmm transposed",
       [](auto& in) {
         return Tensors{at::bmm(in.real({E, T, D}).transpose(1, 2), in.real({E, T, F}))};
       }},
      {"einsum",
       [](auto& in) {
         return Tensors{at::einsum("tec,td->ecd", {in.real({T, E, 8}), in.real({T, D})})};
       },
       kLibrary},
      {"einsum back",
       [](auto& in) {
         return Tensors{at::einsum("tec,ecd->td", {in.real({T, E, 8}), in.real({E, 8, D})})};
       }},
      {"matmul heads",
       [](auto& in) {
         return Tensors{at::matmul(in.real({2, 4, 32, 16}), in.real({2, 4, 32, 16}).transpose(-2, -1))};
       }},
      {"embedding",
       [](auto& in) {
         return Tensors{at::embedding(in.real({V, D}), in.ids({2, 48}, V))};
       }},
      {"max",
       [](auto& in) {
         auto [v, i] = in.real({T, E}).max(-1);
         return Tensors{v, i};
       }},
      {"amax",
       [](auto& in) {
         return Tensors{in.real({T, E}).amax(-1, true)};
       }},
      {"argmax",
       [](auto& in) {
         return Tensors{in.real({T, E}).argmax(-1)};
       }},
      {"sum mean norm",
       [](auto& in) {
         const Tensor x = in.real({T, E});
         return Tensors{x.sum(), x.mean(0), x.norm(), x.sum({0}, false, at::kFloat)};
       },
       {0, 1536}},
      {"cat",
       [](auto& in) {
         return Tensors{at::cat({in.real({T, D}), in.real({T, D})}, -1)};
       }},
      {"stack",
       [](auto& in) {
         return Tensors{at::stack({in.real({T, D}), in.real({T, D})})};
       }},
      {"rotary",
       [](auto& in) {
         const Tensor x = in.real({2, 48, 4, 16}), c = in.fp32({48, 1, 8});
         return Tensors{at::cat({x.narrow(-1, 0, 8) * c, x.narrow(-1, 8, 8) * c}, -1).to(x.scalar_type())};
       }},
      {"tril mask",
       [](auto& in) {
         return Tensors{at::tril(at::ones({48, 48}, at::TensorOptions().device(in.device).dtype(at::kBool)))};
       }},
      {"arange", [](auto& in) { return Tensors{at::arange(T, at::TensorOptions().device(in.device))}; }},
      {"to fp32",
       [](auto& in) {
         return Tensors{in.real({T, D}).to(at::kFloat)};
       }},
      {"flash attention",
       [](auto& in) {
         const Tensor q = in.real({2, 4, 48, 16});
         auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, true);
         return Tensors{o, l};
       },
       kLibrary},
      {"clone contiguous",
       [](auto& in) {
         return Tensors{in.real({T, D}).t().contiguous()};
       },
       {14400, 7200}},
      {"clamp",
       [](auto& in) {
         return Tensors{in.real({T, D}).clamp(-1, 1)};
       }},
      {"isfinite",
       [](auto& in) {
         return Tensors{at::isfinite(in.real({T, D})).all()};
       }},
      {"foreach mul",
       [](auto& in) {
         Tensors x{in.real({T, D}), in.real({D})};
         at::_foreach_mul_(x, 0.5);
         return x;
       },
       {12, 10}},
      {"foreach mul tensor",
       [](auto& in) {
         Tensors x{in.fp32({T, D}), in.fp32({D})};
         at::_foreach_mul_(x, in.fp32({}));
         return x;
       }},
      {"foreach copy",
       [](auto& in) {
         Tensors x{in.real({T, D})};
         at::_foreach_copy_(x, {in.fp32({T, D})});
         return x;
       }},
      {"lerp addcdiv",
       [](auto& in) {
         const Tensor x = in.fp32({T, D});
         x.lerp_(in.fp32({T, D}), 0.1);
         x.addcdiv_(x, in.fp32({T, D}).square());
         x.addcmul_(x, x);
         return Tensors{x};
       }},
      {"repeat_interleave",
       [](auto& in) {
         return Tensors{in.real({2, 4, 8, 16}).repeat_interleave(2, 1)};
       }},
      {"histc scatter_reduce",
       [](auto& in) {
         return Tensors{at::zeros({E}, at::TensorOptions().device(in.device))
                            .scatter_add_(0, in.ids({T * K}, E), in.fp32({T * K}))};
       }},
  };
}

TEST_F(MetaParity, Forward) { check(forward_cases()); }

}  // namespace
}  // namespace moelab
