#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "train/parallel/world.h"

namespace moelab {

using RankStore = c10::intrusive_ptr<c10d::Store>;
using RankGroup = c10::intrusive_ptr<c10d::Backend>;

// The store where the ranks of `world` meet; rank 0 serves it, unless torchrun's agent does. Throws
// UserError, with the address, when it cannot be reached, or served, within `timeout`.
RankStore open_store(const World& world, std::chrono::milliseconds timeout);

// A Gloo group of these ranks of the world, `rank` among them. All of them call it, with one `name` that no
// other group of the store has. Throws c10::Error when one of them does not come within `timeout`, which also
// bounds every later call. From the first group on, the process ignores SIGPIPE, unless it handles it.
RankGroup gloo_group(const RankStore& store, const std::string& name, int64_t rank,
                     const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout);

}  // namespace moelab
