#pragma once

namespace moelab {

// The largest magnitude of a scaled gradient element in the update rules: a larger finite element counts as
// this one, with its sign. Squares stay below 2^64, so that sums and moments of them stay finite in fp32 and
// no finite gradient makes a weight NaN. Adaptive rules divide the size out again; sgd takes the smaller
// step.
inline constexpr float kLargestGradient = 0x1p32f;

}  // namespace moelab
