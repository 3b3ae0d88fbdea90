#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// Tensor cores and what feeds them, from compute capability 8.0 on: a warp's product of small matrices, loads
// of their fragments from shared memory, and copies from global to shared memory that a thread need not wait
// for. All 32 threads of a warp call the first two together. Fragments lie as NVIDIA's PTX ISA says for
// mma.m16n8k16. With lane = 4 q + p, each register holds two elements, at columns 2 p and 2 p + 1 of its row:
//   a (16 x 16, rows by terms)  a[0], a[1]: rows q and q + 8, terms 0 to 7; a[2], a[3]: terms 8 to 15
//   b (16 x 8, terms by columns), transposed: b0: row q, terms 0 to 7; b1: terms 8 to 15
//   sums (16 x 8)               [0], [1]: row q, columns 2 p and 2 p + 1; [2], [3]: row q + 8
namespace moelab::cuda {

__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Begins to copy 16 bytes from global to shared memory, both at multiples of 16 bytes. Without `copied` it
// reads nothing and writes zeros.
__device__ inline void copy_async(void* to_shared, const void* from, bool copied) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)), "l"(from),
               "r"(copied ? 16 : 0)
               : "memory");
}

// The thread's copies since its last call become a group.
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `left` of the thread's groups, the latest, are still under way. Other threads see the
// copies after a barrier behind it.
template <int left>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// Four matrices of 8 x 8 elements of 16 bits from shared memory, one a register. Lane 8 i + r brings the
// address of row r of matrix i. to[i]: row q, or with `transposed` column q, elements 2 p and 2 p + 1.
template <bool transposed>
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
}

// sums += a b in fp32. T: bf16 or fp16.
template <class T>
__device__ inline void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace moelab::cuda
