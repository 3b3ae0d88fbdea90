#pragma once
#include "kernels/moe/router_parts.h"

// The CPU side of the operators of kernels/moe/router.h. On meta it only allocates.
namespace moelab {

router_detail::Forward router_forward_cpu(const router_detail::ForwardCall& call);
router_detail::Gradients router_backward_cpu(const router_detail::BackwardCall& call);

}  // namespace moelab
