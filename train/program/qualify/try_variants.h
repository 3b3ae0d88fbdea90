#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/operator/probe.h"

// Which variants of the operators are right on this device, and how fast.
namespace moelab {

// A variant that was tried.
struct TriedVariant {
  std::string op, variant;
  std::string failure = {};  // why it is out, one line; empty: it agrees
  double milliseconds = 0;   // of those that agree; 0: not timed
};

// Milliseconds of what f does.
using Timer = std::function<double(const std::function<void()>& f)>;

// Compares the variant of `op` with the reference of each of the operator's probes, then times the probes
// that are to be timed. Out of memory is a failure too. Leaves the operator's chosen variant as it was.
TriedVariant try_variant(VariedOperator& op, size_t variant, std::span<const OperatorProbe> probes,
                         const Timer& timer);

// A variant for each operator of this program: the fastest that agrees, of equally fast ones the one named
// last; "plain" if none agrees or the operator was not tried.
KernelChoice fastest_variants(std::span<const TriedVariant> tried);

}  // namespace moelab
