#include "bench/kernels/sorted_routes.h"

#include <thrust/binary_search.h>
#include <thrust/execution_policy.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/scatter.h>
#include <thrust/sequence.h>

#include <cub/device/device_radix_sort.cuh>
#include <stdexcept>
#include <string>

namespace moelab::bench {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
size_t bytes_of(int64_t routes) { return aligned(static_cast<size_t>(routes) * sizeof(int32_t)); }

int bits_of(int64_t experts) {
  int bits = 1;
  while ((int64_t{1} << bits) < experts) ++bits;
  return bits;
}

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUB: ") + cudaGetErrorString(error));
}

}  // namespace

size_t sorted_routes_scratch(int64_t routes, int64_t experts) {
  size_t sort = 0;
  const int32_t* const ids = nullptr;
  int32_t* const sorted = nullptr;
  check(
      cub::DeviceRadixSort::SortPairs(nullptr, sort, ids, sorted, ids, sorted, routes, 0, bits_of(experts)));
  return 3 * bytes_of(routes) + sort;
}

void sorted_routes(const int32_t* ids, int64_t routes, int64_t experts, void* scratch, int32_t* row,
                   int32_t* offsets, cudaStream_t stream) {
  auto* const memory = static_cast<char*>(scratch);
  auto* const number = reinterpret_cast<int32_t*>(memory);
  auto* const sorted = reinterpret_cast<int32_t*>(memory + bytes_of(routes));
  auto* const order = reinterpret_cast<int32_t*>(memory + 2 * bytes_of(routes));
  const auto policy = thrust::cuda::par_nosync.on(stream);
  thrust::sequence(policy, number, number + routes);
  size_t sort = sorted_routes_scratch(routes, experts) - 3 * bytes_of(routes);
  const int32_t* const in_turn = number;
  check(cub::DeviceRadixSort::SortPairs(memory + 3 * bytes_of(routes), sort, ids, sorted, in_turn, order,
                                        routes, 0, bits_of(experts), stream));
  const thrust::counting_iterator<int32_t> first(0);
  thrust::lower_bound(policy, sorted, sorted + routes, first, first + experts + 1, offsets);
  thrust::scatter(policy, first, first + routes, order, row);
}

}  // namespace moelab::bench
