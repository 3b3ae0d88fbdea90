#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/update/optimizer_step.h"
#include "kernels/update/stochastic.h"

// The update rules in double, written from their papers, one element or block at a time. Storage formats are
// functions from double to double that search or use frexp, not bits.
namespace moelab::test {

using Doubles = std::vector<double>;

// How a reference is changed for the variants that must fail.
enum class Broken { nothing, betas_swapped, no_bias_correction, other_block };

struct Reference {
  Doubles weights, m, v;  // v as the rule stores it: one per element, per block …
  OptimizerStep n;
  Broken broken = Broken::nothing;
  int64_t experts = 1, rows = 1, columns = 1;  // of the weights

  double beta1() const { return broken == Broken::betas_swapped ? n.beta2 : n.beta1; }
  double beta2() const { return broken == Broken::betas_swapped ? n.beta1 : n.beta2; }
  double unbiased(double x, double beta) const {
    return broken == Broken::no_bias_correction ? x : x / (1 - std::pow(beta, static_cast<double>(n.step)));
  }
  void decay(size_t i) { weights[i] *= 1 - n.lr * n.weight_decay; }

  void adam(size_t i, double g) {
    m[i] = beta1() * m[i] + (1 - beta1()) * g;
    v[i] = beta2() * v[i] + (1 - beta2()) * g * g;
    decay(i);
    weights[i] -= n.lr * unbiased(m[i], beta1()) / (std::sqrt(unbiased(v[i], beta2())) + n.eps);
  }
};

using StepFunction = std::function<void(Reference&, const Doubles& gradient)>;

// Calls f(first, last) for each block.
template <class F>
void for_blocks(size_t elements, size_t block, const F& f) {
  for (size_t begin = 0; begin < elements; begin += block) f(begin, std::min(elements, begin + block));
}

// ---- storage ----

// The values of the dynamic map, by its definition in arXiv 2110.02861.
inline Doubles dynamic_values(bool is_signed) {
  Doubles values{0, 1};
  double power = 1;
  for (int bits = is_signed ? 6 : 7; bits >= (is_signed ? 0 : 1); --bits, power /= 10) {
    const double width = 0.9 / std::exp2(bits);
    for (double middle = 0.1 + width / 2; middle < 1; middle += width) {
      values.push_back(middle * power);
      if (is_signed) values.push_back(-middle * power);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

inline double nearest_value(const Doubles& values, double x) {
  double best = values[0];
  for (const double value : values) {
    if (std::abs(value - x) < std::abs(best - x)) best = value;
  }
  return best;
}

// x rounded to `bits` bits of significand, ties to even.
inline double round_to_bits(double x, int bits) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

inline double largest(const Doubles& x, size_t begin, size_t end) {
  double most = 0;
  for (size_t i = begin; i < end; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

// Stores each element of x, divided by its block's largest magnitude, through `map`, which maps [-1, 1] to
// itself. The magnitude itself is stored by `scale`.
inline void store_blocks(Doubles& x, size_t block, const std::function<double(double)>& scale,
                         const std::function<double(double)>& map) {
  for_blocks(x.size(), block, [&](size_t begin, size_t end) {
    const double most = scale(largest(x, begin, end));
    for (size_t i = begin; i < end; ++i) {
      x[i] = most == 0 ? 0 : most * map(std::clamp(x[i] / most, -1.0, 1.0));
    }
  });
}

// ---- rules ----

inline void adamw_step(Reference& r, const Doubles& g) {
  for (size_t i = 0; i < g.size(); ++i) r.adam(i, g[i]);
}

// One of x's two bf16 neighbours, chosen by 16 random bits.
inline double stochastic_neighbour(double x, uint32_t random16) {
  if (x == 0) return 0;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double step = std::ldexp(1.0, exponent - 8), count = std::abs(x) / step, below = std::floor(count);
  const bool up = std::floor((count - below) * 65536) + random16 >= 65536;
  return std::copysign((below + (up ? 1 : 0)) * step, x);
}

inline void adamw_bf16_step(Reference& r, const Doubles& g) {
  adamw_step(r, g);
  const uint64_t key = random_key(r.n.stream, r.n.step);
  for (size_t i = 0; i < g.size(); ++i) {
    const uint32_t random = random_bits(key, static_cast<int64_t>(i));
    r.m[i] = stochastic_neighbour(r.m[i], random & 0xFFFF);
    r.v[i] = stochastic_neighbour(r.v[i], random >> 16);
  }
}

inline void adam8bit_step(Reference& r, const Doubles& g) {
  static const Doubles first = dynamic_values(true), second = dynamic_values(false);
  const size_t block = r.broken == Broken::other_block ? 128 : 256;
  const auto same = [](double x) { return x; };
  adamw_step(r, g);
  store_blocks(r.m, block, same, [](double y) { return nearest_value(first, y); });
  store_blocks(r.v, block, same, [](double y) {
    const double near = nearest_value(second, y);
    return near == 0 && y > 0 ? second[1] : near;
  });
}

inline void compact_step(Reference& r, const Doubles& g, bool bf16) {
  const size_t block = r.broken == Broken::other_block ? 16 : 32;
  const auto scale = [](double x) { return std::min(round_to_bits(x, 11), std::ldexp(2047, 6)); };
  adamw_step(r, g);
  store_blocks(r.m, block, scale, [](double y) {
    const double z = std::nearbyint(127 * 2 * y / (1 + std::abs(y))) / 127;
    return z / (2 - std::abs(z));
  });
  for (double& v : r.v) v = std::sqrt(v);
  store_blocks(r.v, block, scale, [](double y) {
    const double code = std::nearbyint(255 * y);
    return (code == 0 && y > 0 ? 1 : code) / 255;
  });
  for (double& v : r.v) v *= v;
  if (!bf16) return;
  for (double& w : r.weights) {
    const double rounded = round_to_bits(w, 8);
    int exponent = 0;
    std::frexp(rounded, &exponent);
    const double part = std::ldexp(1.0, exponent - 9) / 128;  // 1/128 of half a bf16 step
    w = rounded + std::clamp(std::nearbyint((w - rounded) / part), -127.0, 127.0) * part;
  }
}

inline void lion_step(Reference& r, const Doubles& g) {
  for (size_t i = 0; i < g.size(); ++i) {
    const double c = r.beta1() * r.m[i] + (1 - r.beta1()) * g[i];
    r.decay(i);
    r.weights[i] -= r.n.lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
    r.m[i] = r.beta2() * r.m[i] + (1 - r.beta2()) * g[i];
  }
}

inline void sgd_step(Reference& r, const Doubles& g) {
  for (size_t i = 0; i < g.size(); ++i) {
    r.m[i] = r.beta1() * r.m[i] + g[i];
    r.decay(i);
    r.weights[i] -= r.n.lr * r.m[i];
  }
}

// Blocks are the query and key heads, then single rows; v holds one value per block.
inline void adam_mini_step(Reference& r, const Doubles& g, size_t heads, size_t head_rows) {
  const size_t columns = static_cast<size_t>(r.columns);
  size_t block = 0;
  for (size_t begin = 0; begin < g.size(); ++block) {
    const bool head = block < heads && r.broken != Broken::other_block;
    const size_t end = begin + (head ? head_rows : 1) * columns;
    double mean = 0;
    for (size_t i = begin; i < end; ++i) mean += g[i] * g[i] / static_cast<double>(end - begin);
    r.v[block] = r.beta2() * r.v[block] + (1 - r.beta2()) * mean;
    for (size_t i = begin; i < end; ++i) {
      r.m[i] = r.beta1() * r.m[i] + (1 - r.beta1()) * g[i];
      r.decay(i);
      r.weights[i] -=
          r.n.lr * r.unbiased(r.m[i], r.beta1()) / (std::sqrt(r.unbiased(r.v[block], r.beta2())) + r.n.eps);
    }
    begin = end;
  }
}

// m holds the rows' factors and v the columns', expert by expert.
inline void adafactor_step(Reference& r, const Doubles& g) {
  const size_t R = static_cast<size_t>(r.rows), C = static_cast<size_t>(r.columns);
  const double beta =
      r.broken == Broken::no_bias_correction ? 0.999 : 1 - std::pow(static_cast<double>(r.n.step), -0.8);
  const size_t experts = r.broken == Broken::other_block ? 1 : static_cast<size_t>(r.experts);
  const size_t rows = R * static_cast<size_t>(r.experts) / experts;
  for (size_t e = 0; e < experts; ++e) {
    Doubles row(rows, 0), column(C, 0), u(rows * C);
    const double* x = &g[e * rows * C];
    for (size_t i = 0; i < rows * C; ++i) {
      row[i / C] += (x[i] * x[i] + 1e-30) / static_cast<double>(C);
      column[i % C] += (x[i] * x[i] + 1e-30) / static_cast<double>(rows);
    }
    double mean_row = 0, square = 0;
    for (size_t i = 0; i < rows; ++i) {
      r.m[e * rows + i] = beta * r.m[e * rows + i] + (1 - beta) * row[i];
      mean_row += r.m[e * rows + i] / static_cast<double>(rows);
    }
    for (size_t j = 0; j < C; ++j) r.v[e * C + j] = beta * r.v[e * C + j] + (1 - beta) * column[j];
    for (size_t i = 0; i < rows * C; ++i) {
      u[i] = x[i] / std::sqrt(r.m[e * rows + i / C] * r.v[e * C + i % C] / mean_row);
      square += u[i] * u[i] / static_cast<double>(rows * C);
    }
    for (size_t i = 0; i < rows * C; ++i) {
      r.decay(e * rows * C + i);
      r.weights[e * rows * C + i] -= r.n.lr * u[i] / std::max(1.0, std::sqrt(square));
    }
  }
}

}  // namespace moelab::test
