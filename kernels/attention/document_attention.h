#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <tuple>

#include "kernels/attention/attention_span.h"

// Causal attention in documents that share a row, by LibTorch's flash attention for sequences of differing
// lengths: on CUDA, in 16 bits. It takes the tokens of all rows as one sequence, and where each document
// begins in it.
//
// Padding is there cut into stretches that begin at multiples of the longest document's length, so that no
// sequence is longer than that. A token of padding sees padding alone.
namespace moelab {

// Where documents and stretches of padding begin.
struct DocumentStarts {
  at::Tensor starts_N1 =
      {};  // (N + 1) int32, ascending: the begins among B * S tokens, then B * S until the end
  int64_t longest = std::numeric_limits<int64_t>::max();  // tokens of a document, at most
};

// At least the number of documents and stretches of padding in documents_BS, where no document has more than
// `longest` tokens. It is rounded up to a multiple of two for each row and one for every 128 tokens: what
// flash attention allocates depends on it, and so most texts' batches need the same. documents_BS, as
// causal_attention takes it, is read on the host; on meta, documents are taken to have 128 tokens
// or more in the mean.
int64_t document_room(const at::Tensor& documents_BS, int64_t longest);

// Finds where they begin. documents_BS is on CUDA or meta, and `room` its document_room(). The host does not
// wait.
DocumentStarts document_starts(const at::Tensor& documents_BS, int64_t longest, int64_t room);

// Whether LibTorch's flash attention takes q (…, hd): 16-bit types on CUDA from Ampere on, or on meta while
// that stands for such a GPU.
bool is_cuda_flash(const at::Tensor& q);
// Whether its heads, of hd elements, are as wide as that kernel supports: multiples of 16 bytes up to 256
// elements.
bool has_flash_width(const at::Tensor& q);

// The width of its sums of dq (LibTorch 2.11).
constexpr int64_t flash_sum_width(int64_t hd) {
  const int64_t multiple = hd <= 128 ? 32 : 64;
  return (hd + multiple - 1) / multiple * multiple;
}

// Whether the functions below support the input. Blocks of keys are no window.
bool has_document_attention(const at::Tensor& qkv, AttentionSpan span, const DocumentStarts& documents);

// qkv (B, S, heads + 2 * kv_heads, hd) contiguous -> result (B, S, heads * hd) of that dtype and the
// logsumexp of the scaled scores, (heads, B * S) fp32.
std::tuple<at::Tensor, at::Tensor> document_attention_forward(const at::Tensor& qkv, int64_t heads,
                                                              int64_t kv_heads, AttentionSpan span,
                                                              const DocumentStarts& documents);

// grad and out like the result above, contiguous -> the gradient of qkv.
at::Tensor document_attention_backward(const at::Tensor& grad, const at::Tensor& qkv, const at::Tensor& out,
                                       const at::Tensor& logsumexp, int64_t heads, int64_t kv_heads,
                                       AttentionSpan span, const DocumentStarts& documents);

}  // namespace moelab
