#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/emulator/fibers.h"

// The instructions of NVIDIA's PTX ISA that our kernels write themselves, under the names and with the
// operands of their text: translate.py makes `asm("a.b [%0], 16;" :: "r"(x))` a call ptx::a_b(x, 16).
// Addresses of shared memory are offsets in it (shared_offset in fibers.h).
//
// A copy of cp.async is as late as the ISA permits: its target is NaN until the thread waits for its group.
// The race detector takes it for a write when it begins and for another when it ends, and for reads of its
// source. A product of mma or wgmma is rounded to fp32 once; hardware may round its sums in steps.
//
// A product of wgmma (ptx_wgmma.cpp) is as late: its sums are NaN until the thread waits for its group. They
// stay NaN if the factors changed after its beginning, if a copy in them was not shown by fence.proxy.async,
// or if the thread had its sums back and did not give them again by wgmma.fence. Other writes to shared
// memory than copies need that fence, too, which is not checked. The race detector takes a product for reads
// of its factors when it begins and when it ends.
namespace moelab::emulator::ptx {

void cp_async_cg_shared_global(uint32_t to, const void* from, size_t bytes, uint32_t copied);
void cp_async_commit_group();
void cp_async_wait_group(unsigned left);
// What the scheduler (fibers.cpp) tells: copies that nobody has waited for end with their block.
void begin_block();

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t& d0, uint32_t& d1, uint32_t& d2, uint32_t& d3,
                                              uint32_t row);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t& d0, uint32_t& d1, uint32_t& d2, uint32_t& d3,
                                                    uint32_t row);

inline float from_fp16(uint16_t bits) { return __half2float(__builtin_bit_cast(__half, bits)); }
inline float from_bf16(uint16_t bits) { return __builtin_bit_cast(float, uint32_t{bits} << 16); }

// This lane's four elements of the 16 x 8 matrix c + a b. `fragments`: the lane's four registers of a, then
// its two of b. `c`: its four elements of c.
using Sums = std::array<float, 4>;
using Factors = std::array<uint32_t, 6>;
Sums multiplied(const Factors& fragments, const Sums& c, float (*to_float)(uint16_t));

inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float& d0, float& d1, float& d2, float& d3,
                                                              uint32_t a0, uint32_t a1, uint32_t a2,
                                                              uint32_t a3, uint32_t b0, uint32_t b1, float c0,
                                                              float c1, float c2, float c3) {
  const Sums d = multiplied({a0, a1, a2, a3, b0, b1}, {c0, c1, c2, c3}, from_fp16);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3,
                                                                uint32_t a0, uint32_t a1, uint32_t a2,
                                                                uint32_t a3, uint32_t b0, uint32_t b1,
                                                                float c0, float c1, float c2, float c3) {
  const Sums d = multiplied({a0, a1, a2, a3, b0, b1}, {c0, c1, c2, c3}, from_bf16);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}

void fence_proxy_async_shared_cta();
bool is_hidden(uint32_t offset);  // whether wgmma would miss what a copy wrote there

void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(unsigned left);
void begin_block_of_products();

// What the 128 threads of a warpgroup ask for together: sums (64 x `columns`) = a b, or sums += a b if
// `adds`. `a`, `b`: the factors' descriptors; `transposed`: terms are lines, MN-major in the ISA's words.
struct Product {
  uint64_t a, b;
  bool adds, transposed_a, transposed_b;
  unsigned columns;  // of the product, 8 to 256
  float (*to_float)(uint16_t);

  bool operator==(const Product&) const = default;
};
void start(const Product& product, std::vector<float*> sums);

// The operands in the instruction's order: the thread's sums, two descriptors, whether it adds, factors of a
// and b, which must be 1, and whether they are transposed.
template <size_t... i, class Operands>
[[gnu::always_inline]] inline void start(std::index_sequence<i...>, float (*to_float)(uint16_t),
                                         const Operands& all) {
  constexpr size_t n = sizeof...(i);
  if (std::get<n + 3>(all) != 1 || std::get<n + 4>(all) != 1) trap();
  start({std::get<n>(all), std::get<n + 1>(all), std::get<n + 2>(all) != 0, std::get<n + 5>(all) != 0,
         std::get<n + 6>(all) != 0, 2 * n, to_float},
        {&std::get<i>(all)...});
}
template <class... Operands>
[[gnu::always_inline]] inline void wgmma_mma_async_sync_aligned_m64n256k16_f32_f16_f16(
    Operands&&... operands) {
  start(std::make_index_sequence<128>(), from_fp16, std::tie(operands...));
}
template <class... Operands>
[[gnu::always_inline]] inline void wgmma_mma_async_sync_aligned_m64n256k16_f32_bf16_bf16(
    Operands&&... operands) {
  start(std::make_index_sequence<128>(), from_bf16, std::tie(operands...));
}

}  // namespace moelab::emulator::ptx
