#pragma once
// What our kernels use of CUDA's device language, for the host's compiler: translate.py puts it in front of a
// .cu file, turns its launches into calls of launch(), and finds a place for its __shared__ variables. A
// device thread is a fiber (fibers.h).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/emulator/fibers.h"
#include "tests/emulator/ptx.h"

#define __launch_bounds__(...)
#define threadIdx (moelab::emulator::here.thread)
#define blockIdx (moelab::emulator::here.block)
#define blockDim (moelab::emulator::here.threads)
#define gridDim (moelab::emulator::here.blocks)

inline void __syncthreads() { moelab::emulator::sync_block(); }
inline void __syncwarp() { moelab::emulator::sync_warp(); }
inline void __threadfence() { moelab::emulator::fence(); }

template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int other) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = moelab::emulator::shuffle_xor(lanes, bits, other);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline unsigned __match_any_sync(unsigned lanes, int value) {
  return moelab::emulator::match_any(lanes, static_cast<uint32_t>(value));
}

template <class T>
T atomicAdd(T* sum, T value) {
  return moelab::emulator::add_atomically(sum, value);
}

inline size_t __cvta_generic_to_shared(const void* address) {
  return moelab::emulator::shared_offset(address);
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
[[noreturn]] inline void __trap() { moelab::emulator::trap(); }
