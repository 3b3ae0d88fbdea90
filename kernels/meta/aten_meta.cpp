#include "kernels/meta/aten_meta.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/index_add_meta_dispatch.h>
#include <ATen/ops/scatter_add_meta_dispatch.h>
#include <ATen/ops/scatter_meta_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include "kernels/meta/simulated_device.h"

// Shapes: B batch, H heads, S sequence, D head width.
namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// ---- operators that have no Meta kernel ----

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  auto sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return at::empty(sizes, self.options());
}

Tensor bincount(const Tensor&, const OptionalTensor& weights, c10::SymInt minimum) {
  // The length depends on the data; a caller that knows it passes it as the minimum.
  const bool weighted = weights.has_value() && weights->defined();
  const auto options = at::TensorOptions().device(at::kMeta);
  return at::empty({minimum.expect_int()}, options.dtype(weighted ? at::kDouble : at::kLong));
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  Tensor out = at::empty({0}, self.options().dtype(at::result_type(self, other)).device(at::kMeta));
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .add_output(out)
      .add_const_input(condition)
      .add_const_input(self)
      .add_const_input(other)
      .build();
  return out;
}

Tensor& abs_out(const Tensor& self, Tensor& out) {
  at::TensorIterator::unary_op(out, self);
  return out;
}

Tensor& logical_and_out(const Tensor& self, const Tensor& other, Tensor& out) {
  at::TensorIterator::comparison_op(out, self, other);
  return out;
}

Tensor embedding_dense_backward(const Tensor& gradient, const Tensor&, c10::SymInt rows, c10::SymInt, bool) {
  return at::empty({rows.expect_int(), gradient.size(-1)}, gradient.options());
}

// (B, H, S, D) over memory laid out (B, S, H, D), as the CPU's flash attention writes gradients.
Tensor heads_outside(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

std::tuple<Tensor, Tensor> flash_attention(const Tensor& q, const Tensor&, const Tensor&, double, bool,
                                           const OptionalTensor&, std::optional<double>) {
  const Tensor logsumexp = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
  return {at::empty_like(q), logsumexp.transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(const Tensor&, const Tensor& q, const Tensor& k,
                                                            const Tensor& v, const Tensor&, const Tensor&,
                                                            double, bool, const OptionalTensor&,
                                                            std::optional<double>) {
  return {heads_outside(q), heads_outside(k), heads_outside(v)};
}

// ---- operators whose Meta kernel does not allocate what the device that meta stands for would ----

// LibTorch's kernel resizes a meta storage by writing its new length, past the allocator: every operator that
// fills an empty `out` (arange, abs, …) would count as free. As on the CPU, the new block exists before the
// old one is freed.
const Tensor& resize_(const Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(format.value_or(at::MemoryFormat::Contiguous) == at::MemoryFormat::Contiguous,
              "resize_ of a meta tensor: contiguous only");
  auto* tensor = self.unsafeGetTensorImpl();
  auto* storage = self.storage().unsafeGetStorageImpl();
  tensor->set_sizes_contiguous(sizes);
  const size_t bytes = (static_cast<size_t>(self.storage_offset()) + self.numel()) * self.itemsize();
  if (self.numel() > 0 && bytes > storage->nbytes()) {
    storage->set_data_ptr_noswap(c10::GetAllocator(c10::kMeta)->allocate(bytes));
    storage->set_nbytes(bytes);
  }
  return self;  // NOLINT(bugprone-return-const-ref-from-parameter): LibTorch's signature
}

bool owns_its_storage(const Tensor& t) {
  return t.use_count() == 1 && t.has_storage() && t.storage().use_count() == 1;
}

// In a backward pass ATen works in place on tensors that nothing else holds, but never on meta tensors, which
// it treats as a tensor subclass.
bool backward_reuses(const Tensor& self) {
  return torch::autograd::get_current_graph_task_id() != -1 && !at::GradMode::is_enabled() &&
         owns_its_storage(self);
}

// Whether this is the engine's sum of the gradients that reach one node. It is the engine that adds, not a
// node's formula, if no generated node is running.
bool engine_accumulates(const Tensor& self, const Tensor& other) {
  if (!backward_reuses(self)) return false;
  const auto node = torch::autograd::get_current_node();
  if (node != nullptr && node->is_traceable()) return false;
  return self.is_non_overlapping_and_dense() && self.sizes() == other.sizes() &&
         self.scalar_type() == other.scalar_type();
}

Tensor add(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  return engine_accumulates(self, other) ? self : at::meta::add(self, other, alpha);
}

// The backward formulas of index_select, topk, max, gather and the like write into fresh zeros.
Tensor index_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                 const at::Scalar& alpha) {
  return backward_reuses(self) ? self : at::meta::index_add(self, dim, index, source, alpha);
}

Tensor scatter(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  return backward_reuses(self) ? self : at::meta::scatter(self, dim, index, source);
}

Tensor scatter_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  return backward_reuses(self) ? self : at::meta::scatter_add(self, dim, index, source);
}

// CUDA's kernel has the product of both in a tensor of its own first (LibTorch 2.11).
Tensor softmax_backward(const Tensor& gradient, const Tensor& result, int64_t dim, at::ScalarType type) {
  Tensor product;
  if (meta_is_cuda()) product = at::empty_like(result);
  return at::meta::_softmax_backward_data(gradient, result, dim, type);
}

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

torch::Library register_kernels() {
  // LibTorch warns of each operator whose kernel is replaced; here that is the purpose.
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  library.impl("index_select", index_select);
  library.impl("bincount", bincount);
  library.impl("where.self", where);
  library.impl("abs.out", abs_out);
  library.impl("logical_and.out", logical_and_out);
  library.impl("embedding_dense_backward", embedding_dense_backward);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", flash_attention);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward);
  library.impl("resize_", resize_);
  library.impl("add.Tensor", add);
  library.impl("index_add", index_add);
  library.impl("scatter.src", scatter);
  library.impl("scatter_add", scatter_add);
  library.impl("_softmax_backward_data", softmax_backward);
  return library;
}

}  // namespace

void install_meta_kernels() {
  // The registrations last as long as this object does.
  [[maybe_unused]] static const torch::Library library = register_kernels();
}

}  // namespace moelab
