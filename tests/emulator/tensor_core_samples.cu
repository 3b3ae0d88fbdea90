#include "tests/emulator/tensor_core_samples.h"

#include "kernels/device/element.cuh"
#include "kernels/device/tensor_core.cuh"

namespace moelab::emulator::samples {
namespace {

// The offset of a lane's element v in a column-major matrix, as CUTLASS states it
// (MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN>). a is 16 x 16, the transpose of b is 8 x 16, the sums are 16
// x 8.
__device__ int place_in_a(int lane, int v) {
  return lane % 4 * 32 + lane / 4 + v % 2 * 16 + v / 2 % 2 * 8 + v / 4 * 128;
}
__device__ int place_in_b(int lane, int v) { return lane % 4 * 16 + lane / 4 + v % 2 * 8 + v / 2 * 64; }
__device__ int place_in_sums(int lane, int v) { return lane % 4 * 32 + lane / 4 + v % 2 * 16 + v / 2 * 8; }

template <class T, bool swapped>
__global__ void multiply_kernel(const T* a, const T* b, const float* c, float* d) {
  const int lane = static_cast<int>(threadIdx.x);
  T of_a[8], of_b[4];
  float sums[4];
  for (int v = 0; v < 8; ++v) of_a[v] = a[place_in_a(lane, v) % 16 * 16 + place_in_a(lane, v) / 16];
  for (int v = 0; v < 4; ++v) of_b[v] = b[place_in_b(lane, v) / 8 * 8 + place_in_b(lane, v) % 8];
  for (int v = 0; v < 4; ++v) sums[v] = c[place_in_sums(lane, v) % 16 * 8 + place_in_sums(lane, v) / 16];
  uint32_t registers[6];
  memcpy(registers, of_a, sizeof(of_a));
  memcpy(registers + 4, of_b, sizeof(of_b));
  const uint32_t fragment[4] = {registers[0], registers[swapped ? 2 : 1], registers[swapped ? 1 : 2],
                                registers[3]};
  cuda::multiply_add<T>(sums, fragment, registers[4], registers[5]);
  for (int v = 0; v < 4; ++v) d[place_in_sums(lane, v) % 16 * 8 + place_in_sums(lane, v) / 16] = sums[v];
}

template <bool transposed>
__global__ void load_kernel(const uint16_t* from, uint32_t* to) {
  __shared__ uint4 rows[32];
  rows[threadIdx.x] = reinterpret_cast<const uint4*>(from)[threadIdx.x];
  __syncwarp();
  uint32_t loaded[4];
  cuda::load_matrices<transposed>(loaded, &rows[threadIdx.x]);
  for (unsigned i = 0; i < 4; ++i) to[4 * threadIdx.x + i] = loaded[i];
}

template <Missing missing>
__global__ void copy_kernel(const uint16_t* from, uint16_t* to) {
  __shared__ uint4 parts[3][64];
  for (unsigned part = 0; part < 3; ++part) {
    cuda::copy_async(&parts[part][threadIdx.x], from + part * kCopied + 8 * threadIdx.x, part != 1);
    cuda::close_copies();
  }
  if (missing == Missing::last_group) cuda::wait_for_copies<1>();
  if (missing == Missing::nothing || missing == Missing::barrier) cuda::wait_for_copies<0>();
  if (missing != Missing::barrier) __syncthreads();
  for (unsigned part = 0; part < 3; ++part)
    reinterpret_cast<uint4*>(to)[64 * part + threadIdx.x] = parts[part][threadIdx.x ^ 32];
}

__global__ void copy_one_kernel(const void* from) {
  __shared__ uint4 to[1];
  cuda::copy_async(to, from, true);
  cuda::close_copies();
  cuda::wait_for_copies<0>();
}

template <class T>
void multiply_as(bool swapped, const void* a, const void* b, const float* c, float* d) {
  const auto kernel = swapped ? multiply_kernel<T, true> : multiply_kernel<T, false>;
  kernel<<<1, 32, 0, nullptr>>>(static_cast<const T*>(a), static_cast<const T*>(b), c, d);
}

}  // namespace

void multiply(cuda::Element element, bool swapped, const void* a, const void* b, const float* c, float* d) {
  element == cuda::Element::f16 ? multiply_as<__half>(swapped, a, b, c, d)
                                : multiply_as<__nv_bfloat16>(swapped, a, b, c, d);
}

void load_matrices(bool transposed, const uint16_t* from, uint32_t* to) {
  const auto kernel = transposed ? load_kernel<true> : load_kernel<false>;
  kernel<<<1, 32, 0, nullptr>>>(from, to);
}

void copy_parts(Missing missing, const uint16_t* from, uint16_t* to) {
  const auto kernel = missing == Missing::nothing   ? copy_kernel<Missing::nothing>
                      : missing == Missing::wait    ? copy_kernel<Missing::wait>
                      : missing == Missing::barrier ? copy_kernel<Missing::barrier>
                                                    : copy_kernel<Missing::last_group>;
  kernel<<<1, 64, 0, nullptr>>>(from, to);
}

void copy_one(const void* from) { copy_one_kernel<<<1, 1, 0, nullptr>>>(from); }

}  // namespace moelab::emulator::samples
