#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kernels/reference.h"
#include "train/run/trainer.h"

// Two trainers that must hold the same.
namespace moelab::test {

// Names and bits.
inline void expect_equal(const std::vector<TensorEntry>& a, const std::vector<TensorEntry>& b,
                         const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name) << where;
    EXPECT_TRUE(bitwise_equal(a[i].tensor, b[i].tensor)) << where << ": " << a[i].name;
  }
}

inline void copy(const std::vector<TensorEntry>& from, const std::vector<TensorEntry>& to) {
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
}

// All that training goes on from, as a checkpoint does it.
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
