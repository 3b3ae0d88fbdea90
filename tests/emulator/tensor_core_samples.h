#pragma once
#include <cstdint>

#include "kernels/device/element.h"

// Small kernels for test_ptx.cpp, of a warp but for the last.
namespace moelab::emulator::samples {

// d (16 x 8) = c + a (16 x 16) b (16 x 8), all row-major; a and b in bf16 or fp16, c and d in fp32. Each lane
// takes its elements from where `swapped` false says that they lie; true: the second and third register of a
// are each other's.
void multiply(cuda::Element element, bool swapped, const void* a, const void* b, const float* c, float* d);

// Four matrices (4 x 8 x 8) through shared memory; to (32 lanes x 4 registers).
void load_matrices(bool transposed, const uint16_t* from, uint32_t* to);

// Two warps: each thread copies eight numbers of 16 bits into each of three parts of shared memory, a group a
// part, and then each reads the other warp's numbers of the first part. Number i of the second part is copied
// as 0. What is missing: nothing; the wait for the groups; the barrier behind it; that the last group is
// waited for, too, although the third part is read.
enum class Missing { nothing, wait, barrier, last_group };
constexpr int kCopied = 64 * 8;
void copy_parts(Missing missing, const uint16_t* from, uint16_t* to);

// Copies 16 bytes to shared memory from `from`.
void copy_one(const void* from);

}  // namespace moelab::emulator::samples
