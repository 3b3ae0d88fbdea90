#pragma once
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "train/parallel/c10d_communicator.h"

namespace moelab {

// Ranks as threads of this process, over Gloo: rank(r, communicator) runs in one thread a rank, each with its
// own group. Throws the error of the lowest rank that failed, once all have ended.
inline void run_ranks(int64_t size, const std::function<void(int64_t, C10dCommunicator&)>& rank,
                      std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const RankStore store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int64_t> all(size);
  for (int64_t r = 0; r < size; ++r) all[r] = r;
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        C10dCommunicator communicator(gloo_group(store, "all", r, all, timeout), "data/weights");
        rank(r, communicator);
        communicator.agree(std::vector<int64_t>{r});  // nobody leaves while another still reads
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace moelab
