#include "kernels/update/adafactor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/update/adafactor_parts.h"
#include "kernels/update/load_gradient.h"
#include "kernels/update/step_factors.h"
#include "kernels/update/stepped_weights.h"
#include "kernels/update/update_operator.h"
#include "kernels/vector/vec.h"

namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using namespace adafactor_detail;

constexpr int64_t kGrain = 16384;  // elements
constexpr float kFloor = 1e-30f;   // the paper's epsilon_1

void check_tensors(const Tensor& master, const Tensor& gradient, const Tensor& row, const Tensor& column,
                   const OptionalTensor& copy) {
  const Shape s = shape_of(master);
  check_step("adafactor", master, gradient, copy);
  check_state("adafactor", "row", row, at::kFloat, s.experts * s.rows);
  check_state("adafactor", "column", column, at::kFloat, s.experts * s.columns);
}

Tensor scratch_of(const Tensor& row) { return at::empty(row.sizes(), row.options().dtype(at::kDouble)); }

template <class Gradient>
struct Adafactor {
  Shape shape;
  SteppedWeights weights;
  const Gradient* gradient;
  float *row, *column;
  double* row_sum;  // scratch, one a row
  float beta, gradient_scale, keep, lr;

  Vec load(int64_t i, int64_t count) const { return load_gradient(gradient + i, count, gradient_scale); }
  int64_t row_grain() const { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, shape.columns)); }

  // Calls f(row, counted over all matrices; the index of its first element).
  template <class F>
  void for_each_row(const F& f) const {
    at::parallel_for(0, shape.experts * shape.rows, row_grain(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f(r, r * shape.columns);
    });
  }

  void update_rows() const {
    for_each_row([&](int64_t r, int64_t first) {
      Vec sum(0);
      for_each_vector(shape.columns, [&](int64_t c, int64_t count) {
        const Vec g = load(first + c, count);
        sum = at::vec::fmadd(g, g, sum);
      });
      const float mean = horizontal_sum(sum) / static_cast<float>(shape.columns) + kFloor;
      row[r] = beta * row[r] + (1 - beta) * mean;
    });
  }

  // Down the rows, a vector of columns at a time.
  void update_columns() const {
    const int64_t strips = (shape.columns + kLanes - 1) / kLanes;
    const int64_t grain = std::max<int64_t>(1, kGrain / (shape.rows * kLanes));
    at::parallel_for(0, shape.experts * strips, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t expert = i / strips, c = i % strips * kLanes,
                      count = std::min(kLanes, shape.columns - c);
        update_strip(gradient_at(expert, c), column + expert * shape.columns + c, count);
      }
    });
  }
  int64_t gradient_at(int64_t expert, int64_t c) const { return expert * shape.rows * shape.columns + c; }
  void update_strip(int64_t first, float* factor, int64_t count) const {
    constexpr int64_t kRows = 256;  // summed separately, so that long columns stay exact
    Vec sum(0);
    for (int64_t begin = 0; begin < shape.rows; begin += kRows) {
      Vec part(0);
      for (int64_t r = begin; r < std::min(begin + kRows, shape.rows); ++r) {
        const Vec g = load(first + r * shape.columns, count);
        part = at::vec::fmadd(g, g, part);
      }
      sum = sum + part;
    }
    const Vec mean = sum * Vec(1 / static_cast<float>(shape.rows)) + Vec(kFloor);
    store_float(factor, at::vec::fmadd(load_float(factor, count), Vec(beta), mean * Vec(1 - beta)), count);
  }

  // u = g / sqrt(r c / mean(r)) for some columns of a row; inverse_row is sqrt(mean(r) / r).
  Vec direction(int64_t r, int64_t c, int64_t count, float inverse_row) const {
    const float* factor = column + r / shape.rows * shape.columns + c;
    return load(r * shape.columns + c, count) * Vec(inverse_row) / load_float(factor, count).sqrt();
  }

  void sum_directions(const std::vector<double>& mean_row) const {
    for_each_row([&](int64_t r, int64_t) {
      const float inverse = inverse_root(r, mean_row);
      Vec sum(0);
      for_each_vector(shape.columns, [&](int64_t c, int64_t count) {
        Vec u = direction(r, c, count, inverse);
        if (count < kLanes) u = Vec::set(Vec(0), u, count);  // the lanes past the end are 0 / 0
        sum = at::vec::fmadd(u, u, sum);
      });
      row_sum[r] = horizontal_sum(sum);
    });
  }

  float inverse_root(int64_t r, const std::vector<double>& mean_row) const {
    return static_cast<float>(std::sqrt(mean_row[r / shape.rows] / row[r]));
  }

  // For each expert the mean of `values`, which has one element per row.
  template <class T>
  std::vector<double> row_means(const T* values) const {
    std::vector<double> means(shape.experts, 0);
    for (int64_t r = 0; r < shape.experts * shape.rows; ++r) means[r / shape.rows] += values[r];
    for (double& mean : means) mean /= static_cast<double>(shape.rows);
    return means;
  }

  void update_weights(const std::vector<double>& mean_row, const std::vector<double>& mean_square) const {
    for_each_row([&](int64_t r, int64_t first) {
      const float inverse = inverse_root(r, mean_row);
      const double rms = std::sqrt(mean_square[r / shape.rows] / static_cast<double>(shape.columns));
      const Vec size(lr / static_cast<float>(std::max(1.0, rms)));
      for_each_vector(shape.columns, [&](int64_t c, int64_t count) {
        const int64_t i = first + c;
        const Vec weight =
            at::vec::fmsub(weights.load(i, count), Vec(keep), size * direction(r, c, count, inverse));
        weights.store(i, weight, count);
      });
    });
  }

  void step() const {
    update_rows();
    update_columns();
    const std::vector<double> mean_row = row_means(row);
    sum_directions(mean_row);
    update_weights(mean_row, row_means(row_sum));
  }
};

template <class Gradient>
void step_cpu(const Tensor& master, const Tensor& gradient, const Tensor& row, const Tensor& column,
              const OptionalTensor& copy, const OptimizerStep& s) {
  const Tensor scratch = scratch_of(row);
  const FactoredFactors f = factored_factors(s);
  const Adafactor<Gradient> rule{.shape = shape_of(master),
                                 .weights = SteppedWeights(master, copy, s),
                                 .gradient = gradient.data_ptr<Gradient>(),
                                 .row = row.data_ptr<float>(),
                                 .column = column.data_ptr<float>(),
                                 .row_sum = scratch.data_ptr<double>(),
                                 .beta = f.beta,
                                 .gradient_scale = f.gradient_scale,
                                 .keep = f.keep,
                                 .lr = f.lr};
  if (master.numel() > 0) rule.step();
}

struct AdafactorRule {
  static constexpr const char* name = "adafactor_";
  static void check(const UpdateTensors& t) {
    check_tensors(t.weights, t.gradient, t.state.at(0), t.state.at(1), t.compute_copy);
  }
  static void on_cpu(const UpdateTensors& t, const OptimizerStep& step) {
    with_element_type(t.gradient.scalar_type(), [&](auto g) {
      step_cpu<decltype(g)>(t.weights, t.gradient, t.state[0], t.state[1], t.compute_copy, step);
    });
  }
  static void on_meta(const UpdateTensors& t) { scratch_of(t.state[0]); }
};

}  // namespace

void adafactor_(const Tensor& master, const Tensor& gradient, const Tensor& row, const Tensor& column,
                const OptionalTensor& compute_copy, const OptimizerStep& step) {
  const Tensor state[] = {row, column};
  call_update_rule<AdafactorRule>({master, gradient, state, compute_copy}, step);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) { register_update_rule<AdafactorRule>(m); }

}  // namespace moelab
