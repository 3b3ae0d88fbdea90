#include "kernels/device/launch.h"
#include "kernels/device/reduce.cuh"
#include "kernels/update/update_rules.cuh"

// Axes: matrices (experts) of rows and columns. Every sum has a fixed order.
namespace moelab::cuda {
namespace {

constexpr float kFloor = 1e-30f;  // the paper's epsilon_1

// One call's pointers.
template <class Gradient>
struct Step {
  WeightPointers weights;
  const Gradient* gradient;
  float *row, *column;
  double *row_sum, *mean_row, *mean_square;  // scratch: one a row, two a matrix
  FactoredShape shape;
  FactoredFactors f;
  CapturableCall live;

  __device__ bool begin() { return begin_step(live, f, weights); }
  __device__ float load(int64_t i) const { return load_gradient(gradient, i, f.gradient_scale); }
  __device__ int64_t all_rows() const { return shape.experts * shape.rows; }
  // u = g / sqrt(r c / mean(r)); inverse_row is sqrt(mean(r) / r).
  __device__ float direction(int64_t r, int64_t c, float inverse_row) const {
    return load(r * shape.columns + c) * inverse_row / sqrtf(column[r / shape.rows * shape.columns + c]);
  }
  __device__ float inverse_root(int64_t r) const {
    return static_cast<float>(sqrt(mean_row[r / shape.rows] / row[r]));
  }
};

template <class Gradient>
__global__ void update_rows(Step<Gradient> s) {
  if (!s.begin()) return;
  const int64_t columns = s.shape.columns;
  for (int64_t r = blockIdx.x; r < s.all_rows(); r += gridDim.x) {
    double sum = 0;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
      const float g = s.load(r * columns + c);
      sum += double(g) * g;
    }
    const float mean = static_cast<float>(block_sum(sum) / static_cast<double>(columns)) + kFloor;
    if (threadIdx.x == 0) s.row[r] = s.f.beta * s.row[r] + (1 - s.f.beta) * mean;
  }
}

// A block takes a strip of columns of one matrix. Adjacent threads take adjacent columns; `down` is the first
// row.
template <class Gradient>
__global__ void update_columns(Step<Gradient> s) {
  if (!s.begin()) return;
  constexpr int kStrip = kFactoredStrip, kDeep = kThreads / kStrip;
  __shared__ double partial[kDeep][kStrip];
  const int64_t rows = s.shape.rows, columns = s.shape.columns, strips = ceil_div(columns, kStrip);
  const int across = threadIdx.x % kStrip, down = threadIdx.x / kStrip;
  for (int64_t task = blockIdx.x; task < s.shape.experts * strips; task += gridDim.x) {
    const int64_t expert = task / strips, c = task % strips * kStrip + across;
    double sum = 0;
    for (int64_t r = down; r < rows && c < columns; r += kDeep) {
      const float g = s.load((expert * rows + r) * columns + c);
      sum += double(g) * g;
    }
    __syncthreads();  // all have read the previous strip
    partial[down][across] = sum;
    __syncthreads();
    if (down > 0 || c >= columns) continue;
    for (int i = 1; i < kDeep; ++i) sum += partial[i][across];
    float& factor = s.column[expert * columns + c];
    const float mean = static_cast<float>(sum / static_cast<double>(rows)) + kFloor;
    factor = factor * s.f.beta + mean * (1 - s.f.beta);
  }
}

// to[expert] = mean of the expert's rows of `values`.
template <class T>
__global__ void mean_of_rows(const T* values, double* to, int64_t experts, int64_t rows) {
  for (int64_t e = blockIdx.x; e < experts; e += gridDim.x) {
    double sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += kThreads) sum += values[e * rows + r];
    sum = block_sum(sum);
    if (threadIdx.x == 0) to[e] = sum / static_cast<double>(rows);
  }
}

template <class Gradient>
__global__ void sum_directions(Step<Gradient> s) {
  if (!s.begin()) return;
  for (int64_t r = blockIdx.x; r < s.all_rows(); r += gridDim.x) {
    const float inverse = s.inverse_root(r);
    double sum = 0;
    for (int64_t c = threadIdx.x; c < s.shape.columns; c += kThreads) {
      const float u = s.direction(r, c, inverse);
      sum += double(u) * u;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) s.row_sum[r] = sum;
  }
}

template <class Gradient>
__global__ void update_weights(Step<Gradient> s) {
  if (!s.begin()) return;
  for (int64_t r = blockIdx.x; r < s.all_rows(); r += gridDim.x) {
    const float inverse = s.inverse_root(r);
    const double rms = sqrt(s.mean_square[r / s.shape.rows] / static_cast<double>(s.shape.columns));
    const float size = s.f.lr / static_cast<float>(fmax(1.0, rms));
    for (int64_t c = threadIdx.x; c < s.shape.columns; c += kThreads) {
      const int64_t i = r * s.shape.columns + c;
      store_weight(s.weights, i, load_weight(s.weights, i) * s.f.keep - size * s.direction(r, c, inverse));
    }
  }
}

}  // namespace

void adafactor(const WeightPointers& weights, const GradientPointer& gradient, float* row, float* column,
               double* scratch, const FactoredShape& shape, const FactoredFactors& factors,
               const CapturableCall& live, cudaStream_t stream) {
  if (shape.elements() == 0) return;
  const int64_t all_rows = shape.experts * shape.rows;
  double *mean_row = scratch + all_rows, *mean_square = mean_row + shape.experts;
  const unsigned by_row = grid_of(all_rows), by_expert = grid_of(shape.experts);
  with_gradient(gradient, [&](const auto* g) {
    using Gradient = std::remove_cv_t<std::remove_pointer_t<decltype(g)>>;
    const Step<Gradient> s{weights, g, row, column, scratch, mean_row, mean_square, shape, factors, live};
    update_rows<<<by_row, kThreads, 0, stream>>>(s);
    update_columns<<<grid_of(shape.strips()), kThreads, 0, stream>>>(s);
    mean_of_rows<<<by_expert, kThreads, 0, stream>>>(row, mean_row, shape.experts, shape.rows);
    sum_directions<<<by_row, kThreads, 0, stream>>>(s);
    mean_of_rows<<<by_expert, kThreads, 0, stream>>>(scratch, mean_square, shape.experts, shape.rows);
    update_weights<<<by_row, kThreads, 0, stream>>>(s);
  });
}

}  // namespace moelab::cuda
