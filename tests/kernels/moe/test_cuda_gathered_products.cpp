#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include "kernels/device/element_of.h"
#include "kernels/moe/dispatch.h"
#include "kernels/moe/expert_rows.h"
#include "kernels/moe/gathered_products.h"
#include "kernels/operator/gpu.h"
#include "tests/cuda_device.h"
#include "tests/kernels/reference.h"

// Products over experts on a GPU beside one product per expert in float64. Axes: T tokens, K routes a token,
// E experts, R rows grouped by expert, D, A, B widths.
namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;
using test::close_to;
const c10::Device kGpu(c10::kCUDA, 0);

struct Case {
  const char* name;
  int64_t T, K, E;
  enum { spread, one_expert, holes, capacity } load;  // capacity: of all tokens, with holes
  int64_t A, B;                                       // widths
};

// Tiles have 128 rows and 128 or 256 columns, stages 32 or 64 terms.
const Case kCases[] = {{"one row", 1, 1, 3, Case::spread, 8, 16},
                       {"experts without rows", 3, 2, 40, Case::spread, 40, 24},
                       {"all rows at one expert", 140, 1, 3, Case::one_expert, 32, 136},
                       {"tails of tiles and stages", 150, 2, 3, Case::spread, 72, 200},
                       {"ids of -1", 90, 2, 4, Case::holes, 136, 40},
                       {"rows that no route fills", 50, 2, 2, Case::capacity, 24, 40},
                       {"more stages than there is room for", 300, 1, 2, Case::one_expert, 344, 264}};

struct Grouped {
  Routes routes;
  Tensor route_R, offsets;  // offsets on the host

  explicit Grouped(const Case& c) {
    at::manual_seed(3);
    Tensor scores = at::rand({c.T, c.E});
    if (c.load == Case::one_expert) scores.select(1, 1).fill_(2);
    Tensor ids = std::get<1>(scores.topk(c.K, 1)).to(at::kInt).contiguous();
    if (c.load == Case::holes || c.load == Case::capacity)
      ids.view(-1).slice(0, 0, c10::nullopt, 3).fill_(-1);
    routes = c.load == Case::capacity ? capacity_routes(ids.to(kGpu), c.E, c.T, c.T)
                                      : dropless_routes(ids.to(kGpu), c.E);
    route_R = at::empty({routes.rows}, routes.row_TK.options());
    cuda::invert_routes(routes.row_TK.const_data_ptr<int32_t>(), c.T * c.K,
                        route_R.mutable_data_ptr<int32_t>(), routes.rows, c10::cuda::getCurrentCUDAStream());
    offsets = routes.offsets_E1.cpu();
  }
  int64_t first(int64_t e) const { return offsets[e].item<int64_t>(); }
  int64_t count(int64_t e) const { return first(e + 1) - first(e); }
  int64_t used() const { return first(offsets.size(0) - 1); }
  const int32_t* device_offsets() const { return routes.offsets_E1.const_data_ptr<int32_t>(); }
};

Tensor normal(at::IntArrayRef shape, at::ScalarType type) { return at::randn(shape).to(type).to(kGpu); }

// Rows in float64 on the host, of (T, columns) or (R, columns).
Tensor wide_rows(const Grouped& g, const Case& c, const Tensor& data, bool by_token) {
  const Tensor wide = data.cpu().to(at::kDouble), route = g.route_R.cpu();
  if (!by_token) return wide;
  const Tensor rows = wide.index_select(0, route.clamp_min(0).to(at::kLong).div(c.K, "floor"));
  return rows.masked_fill_(route.lt(0).unsqueeze(1), 0);
}

cuda::GroupedRows rows_of(const Grouped& g, const Case& c, const Tensor& data, bool by_token) {
  return {data.const_data_ptr(), data.size(1), by_token ? g.route_R.const_data_ptr<int32_t>() : nullptr, c.K};
}

struct Kernel {
  const char* name;
  const cuda::GatheredProducts& products;
  bool is_for_hopper;

  bool runs_here() const { return !is_for_hopper || compute_capability(kGpu) == 90; }
};
const Kernel kKernels[] = {{"by warps", cuda::warp_products, false}, {"hopper", cuda::hopper_products, true}};

void check_rows(const Kernel& k, const Case& c, at::ScalarType type, bool by_token, bool transposed) {
  const Grouped g(c);
  const int64_t R = g.routes.rows;
  const Tensor a = normal({by_token ? c.T : R, c.A}, type),
               w = normal({c.E, transposed ? c.B : c.A, transposed ? c.A : c.B}, type);
  const Tensor out = at::full({R, c.B}, 77, w.options());
  k.products.multiply_rows(cuda::element_of(a), rows_of(g, c, a, by_token), w.const_data_ptr(), transposed,
                           g.device_offsets(), c.E, R, c.B, out.mutable_data_ptr(),
                           c10::cuda::getCurrentCUDAStream());
  const Tensor wide_w = w.cpu().to(at::kDouble), rows = wide_rows(g, c, a, by_token);
  Tensor want = at::full({R, c.B}, 77, at::kDouble);
  for (int64_t e = 0; e < c.E; ++e) {
    Tensor part = want.narrow(0, g.first(e), g.count(e));
    part.copy_(rows.narrow(0, g.first(e), g.count(e)).mm(transposed ? wide_w[e].t() : wide_w[e]));
  }
  const Tensor got = out.cpu();
  EXPECT_TRUE(close_to(got.narrow(0, 0, g.used()), want.narrow(0, 0, g.used()), test::tolerance(type, c.A)))
      << k.name << ": " << c.name << " " << type << by_token << transposed;
  EXPECT_TRUE(bitwise_equal(got.slice(0, g.used()), want.slice(0, g.used()).to(type)))
      << k.name << ": " << c.name;
}

void check_columns(const Kernel& k, const Case& c, at::ScalarType type, bool a_by_token, bool b_by_token) {
  const Grouped g(c);
  const auto rows = [&](bool by_token) { return by_token ? c.T : g.routes.rows; };
  const Tensor a = normal({rows(a_by_token), c.A}, type), b = normal({rows(b_by_token), c.B}, type);
  const Tensor out = at::full({c.E, c.A, c.B}, 77, a.options());
  k.products.multiply_columns(cuda::element_of(a), rows_of(g, c, a, a_by_token), rows_of(g, c, b, b_by_token),
                              g.device_offsets(), c.E, out.mutable_data_ptr(),
                              c10::cuda::getCurrentCUDAStream());
  const Tensor wide_a = wide_rows(g, c, a, a_by_token), wide_b = wide_rows(g, c, b, b_by_token),
               got = out.cpu();
  for (int64_t e = 0; e < c.E; ++e) {
    const auto part = [&](const Tensor& wide) { return wide.narrow(0, g.first(e), g.count(e)); };
    EXPECT_TRUE(close_to(got[e], part(wide_a).t().mm(part(wide_b)), test::tolerance(type, g.count(e))))
        << k.name << ": " << c.name << " " << type << a_by_token << b_by_token << " expert " << e;
  }
}

// Of an up-projection, gates and what belongs to them, both of c.B columns.
void check_gated_rows(const Case& c, at::ScalarType type) {
  const Grouped g(c);
  const int64_t R = g.routes.rows;
  const Tensor x = normal({c.T, c.A}, type), w13 = normal({c.E, 2 * c.B, c.A}, type);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto filled = [&](int64_t columns) { return at::full({R, columns}, 77, x.options()); };
  const Tensor product = filled(2 * c.B), h = filled(2 * c.B), act = filled(c.B), alone = filled(c.B);
  const cuda::GroupedRows rows = rows_of(g, c, x, true);
  cuda::hopper_products.multiply_rows(cuda::element_of(x), rows, w13.const_data_ptr(), true,
                                      g.device_offsets(), c.E, R, 2 * c.B, product.mutable_data_ptr(),
                                      stream);
  const auto multiply = [&](void* to_h, const Tensor& to) {
    cuda::multiply_gated_rows(cuda::element_of(x), rows, w13.const_data_ptr(), g.device_offsets(), c.E, R,
                              c.B, to_h, to.mutable_data_ptr(), stream);
  };
  multiply(h.mutable_data_ptr(), act);
  multiply(nullptr, alone);
  EXPECT_TRUE(bitwise_equal(h.cpu(), product.cpu())) << c.name << " " << type;
  EXPECT_TRUE(bitwise_equal(alone.cpu(), act.cpu())) << c.name << " " << type << ": h is not kept";
  const Tensor wide = product.cpu().to(at::kDouble).narrow(0, 0, g.used());
  const Tensor want = at::silu(wide.slice(1, 0, c.B)) * wide.slice(1, c.B);
  EXPECT_TRUE(close_to(act.cpu().narrow(0, 0, g.used()), want, test::tolerance(type, 1)))
      << c.name << " " << type;
  const Tensor rest = act.cpu().slice(0, g.used());
  EXPECT_TRUE(bitwise_equal(rest, at::full_like(rest, 77))) << c.name << " " << type;
}

// Calls f for each kernel that this GPU runs, and each case.
template <class F>
void for_kernels(const F& f) {
  for (const Kernel& k : kKernels) {
    for (const Case& c : kCases) {
      if (k.runs_here()) f(k, c);
    }
  }
}

TEST(GatheredProductsCuda, RowsTimesTheirExpertsMatrices) {
  MOELAB_NEEDS_CUDA();
  for_kernels([](const Kernel& k, const Case& c) {
    check_rows(k, c, at::kBFloat16, true, true);
    check_rows(k, c, at::kBFloat16, true, false);
    check_rows(k, c, at::kHalf, false, true);
    check_rows(k, c, at::kHalf, false, false);
  });
}

TEST(GatheredProductsCuda, ColumnsOverAnExpertsRows) {
  MOELAB_NEEDS_CUDA();
  for_kernels([](const Kernel& k, const Case& c) {
    check_columns(k, c, at::kBFloat16, true, false);
    check_columns(k, c, at::kHalf, false, true);
  });
}

TEST(GatheredProductsCuda, AnUpProjectionWithItsActivation) {
  MOELAB_NEEDS_CUDA();
  if (compute_capability(kGpu) != 90) GTEST_SKIP() << "a kernel for compute capability 9.0";
  for (const Case& c : kCases) {
    check_gated_rows(c, at::kBFloat16);
    check_gated_rows(c, at::kHalf);
  }
}

}  // namespace
}  // namespace moelab
