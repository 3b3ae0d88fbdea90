#pragma once
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "moe/tensor_slice.h"
#include "tests/kernels/reference.h"
#include "train/step/trainer.h"

// For comparing two trainers that must be in the same state.
namespace moelab::test {

// What a rank that has `part` of it holds of a whole tensor.
inline at::Tensor own_part(const at::Tensor& whole, const TensorEntry& part) {
  if (!part.part) return whole;
  EXPECT_EQ(whole.sizes(), at::IntArrayRef(part.part->shape)) << part.name;
  return cut(whole.contiguous(), *part.part, part.tensor.numel()).view(part.tensor.sizes());
}

// Expects the same names and bitwise the same tensors; of `a`, which may be a rank's parts.
inline void expect_equal(const std::vector<TensorEntry>& a, const std::vector<TensorEntry>& b,
                         const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name) << where;
    EXPECT_TRUE(bitwise_equal(a[i].tensor, own_part(b[i].tensor, a[i]))) << where << ": " << a[i].name;
  }
}

// Expects each entry of `got`, a rank's, to be in the whole run bit by bit, and takes it off the names
// `left`.
inline void expect_among(const std::vector<TensorEntry>& got, const std::vector<TensorEntry>& want,
                         std::set<std::string>& left, const std::string& where) {
  std::map<std::string, at::Tensor> whole;
  for (const TensorEntry& entry : want) whole[entry.name] = entry.tensor;
  for (const TensorEntry& entry : got) {
    ASSERT_TRUE(whole.contains(entry.name)) << where << ": " << entry.name;
    EXPECT_TRUE(bitwise_equal(entry.tensor, own_part(whole[entry.name], entry)))
        << where << ": " << entry.name;
    left.erase(entry.name);
  }
}

inline void copy(const std::vector<TensorEntry>& from, const std::vector<TensorEntry>& to) {
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
}

// Copies everything that training continues from, as a checkpoint does.
inline void carry_over(Trainer& from, Trainer& to) {
  const std::vector<TensorEntry> weights = to.weights(), state = to.optimizer_state();
  copy(from.weights(), weights);
  to.set_weights(weights);
  copy(from.optimizer_state(), state);
  to.set_optimizer_state(state);
  to.restored(from.optimizer().steps());
  to.loss_scale().restore(from.loss_scale().state());
}

}  // namespace moelab::test
