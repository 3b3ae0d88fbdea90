#include "train/predict/largest.h"

#include <gtest/gtest.h>

namespace moelab {
namespace {

TEST(LargestFitting, IsFoundFromAnyGuess) {
  for (const int64_t most : {1, 2, 10, 1000})
    for (int64_t limit = 0; limit <= most; limit += 1 + most / 20)
      for (const int64_t guess : {int64_t{-5}, int64_t{1}, limit - 1, limit, limit + 1, most / 2, most + 7})
        EXPECT_EQ(largest_fitting(guess, most,
                                  [&](int64_t count) {
                                    EXPECT_TRUE(1 <= count && count <= most) << count;
                                    return count <= limit;
                                  }),
                  limit)
            << "of " << most << " from " << guess;
}

TEST(LargestFitting, AGoodGuessCostsTwoQuestions) {
  for (const int64_t guess : {499, 500, 501, 502, 300}) {
    int64_t questions = 0;
    largest_fitting(guess, 4096, [&](int64_t count) {
      ++questions;
      return count <= 500;
    });
    EXPECT_LE(questions, guess == 500 || guess == 501 ? 2 : guess == 300 ? 20 : 4) << guess;
  }
}

}  // namespace
}  // namespace moelab
