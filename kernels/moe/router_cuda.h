#pragma once
#ifdef MOELAB_WITH_CUDA
#include "kernels/moe/router_parts.h"

// The CUDA side of the operators of kernels/moe/router.h. Up to 1,024 experts.
namespace moelab {

router_detail::Forward router_forward_cuda(const router_detail::ForwardCall& call);
router_detail::Gradients router_backward_cuda(const router_detail::BackwardCall& call);

}  // namespace moelab
#endif
