#include "kernels/moe/expert_variants.h"

namespace moelab::cuda {

Variants<CombineRows> combine_rows("combine_rows",
                                   {{"plain", combine_rows_packed[0]}, {"packed", combine_rows_packed[1]}});
Variants<Swiglu> swiglu("swiglu", {{"plain", swiglu_packed[0]}, {"packed", swiglu_packed[1]}});
Variants<SwigluBackward> swiglu_backward("swiglu_backward", {{"plain", swiglu_backward_packed[0]},
                                                             {"packed", swiglu_backward_packed[1]}});

}  // namespace moelab::cuda
