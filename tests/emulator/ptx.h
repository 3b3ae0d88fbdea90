#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cstddef>
#include <cstdint>

// The instructions of NVIDIA's PTX ISA that our kernels write themselves, under the names and with the
// operands of their text: translate.py makes `asm("a.b [%0], 16;" :: "r"(x))` a call ptx::a_b(x, 16).
// Addresses of shared memory are offsets in it (shared_offset in fibers.h).
//
// A copy of cp.async is as late as the ISA permits: its target is NaN until the thread waits for its group.
// The race detector takes it for a write when it begins and for another when it ends, and for reads of its
// source. A product of mma is rounded to fp32 once; hardware may round its sums in steps.
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

// This lane's four elements of the 16 x 8 matrix c + a b. `fragments`: the lane's four registers of a, then
// its two of b. `c`: its four elements of c.
using Sums = std::array<float, 4>;
using Factors = std::array<uint32_t, 6>;
Sums multiplied(const Factors& fragments, const Sums& c, float (*to_float)(uint16_t));

inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float& d0, float& d1, float& d2, float& d3,
                                                              uint32_t a0, uint32_t a1, uint32_t a2,
                                                              uint32_t a3, uint32_t b0, uint32_t b1, float c0,
                                                              float c1, float c2, float c3) {
  const Sums d = multiplied({a0, a1, a2, a3, b0, b1}, {c0, c1, c2, c3},
                            [](uint16_t bits) { return __half2float(__builtin_bit_cast(__half, bits)); });
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3,
                                                                uint32_t a0, uint32_t a1, uint32_t a2,
                                                                uint32_t a3, uint32_t b0, uint32_t b1,
                                                                float c0, float c1, float c2, float c3) {
  const Sums d = multiplied({a0, a1, a2, a3, b0, b1}, {c0, c1, c2, c3},
                            [](uint16_t bits) { return __builtin_bit_cast(float, uint32_t{bits} << 16); });
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}

}  // namespace moelab::emulator::ptx
