#pragma once
#include <optional>
#include <tuple>

#include "kernels/router_parts.h"

// The CPU side of the operators of kernels/router.h, with their signatures; on meta nothing is computed.
namespace moelab {

router_detail::Forward router_forward_cpu(const at::Tensor& x_TD, const at::Tensor& w_ED,
                                          const std::optional<at::Tensor>& bias_E,
                                          const std::optional<at::Tensor>& replay_TK, int64_t top_k,
                                          bool sigmoid, bool expert_choice, bool normalise, int64_t sequence,
                                          int64_t capacity, const std::optional<at::Tensor>& documents);
std::tuple<at::Tensor, at::Tensor> router_backward_cpu(
    const at::Tensor& dweights_TK, const at::Tensor& dbalance, const at::Tensor& dz, const at::Tensor& x_TD,
    const at::Tensor& w_ED, const at::Tensor& logits_TE, const at::Tensor& lse_T, const at::Tensor& ids_TK,
    const at::Tensor& fraction_BE, bool sigmoid, bool normalise, int64_t sequence,
    const std::optional<at::Tensor>& documents);

}  // namespace moelab
