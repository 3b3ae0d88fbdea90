// Times one exchange of gradients between ranks: as a training makes it, and as Gloo's own reduce-scatter.
//
//   scripts/ranks.sh 2 bench_exchange TYPE BYTES ROUNDS
//
// TYPE: float or bf16. BYTES: of the gradient, on each rank. Both reduce it onto parts, in turns: ours sends
// the parts and adds them in the order of ranks, onto an fp32 sum; Gloo's adds in TYPE. Rank 0 prints one
// line of JSON: {"sent_ms": […], "ordered_ms": […], "gloo_ms": […]}, where `sent` is `ordered` up to the
// addition. Results that differ are an error, not a time.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/memory/allocators.h"
#include "kernels/update/ordered_sum.h"
#include "moe/settings/error.h"
#include "train/parallel/c10d_communicator.h"

namespace moelab {
namespace {

constexpr auto kTimeout = std::chrono::seconds(120);

// A gradient of `elements` a rank, of which each rank's part is `elements / ranks`.
class Exchange {
 public:
  Exchange(const World& world, int64_t elements, at::ScalarType type) : size_(world.size) {
    const RankStore store = open_store(world, kTimeout);
    std::vector<int64_t> all;
    for (int64_t r = 0; r < size_; ++r) all.push_back(r);
    group_ = gloo_group(store, "gloo", world.rank, all, kTimeout);
    ours_ = std::make_unique<C10dCommunicator>(gloo_group(store, "ours", world.rank, all, kTimeout), "ours");
    // small integers, so that sums in 16 bits are exact
    gradient_ =
        at::randint(-8, 9, {elements}, at::dtype(at::kFloat)).add(static_cast<double>(world.rank)).to(type);
    received_RN_ = at::empty({size_, elements / size_}, gradient_.options());
    sum_N_ = at::empty({elements / size_}, at::kFloat);
    gloo_sum_N_ = at::empty({elements / size_}, gradient_.options());
  }

  void wait_for_all() { ours_->agree(std::vector<int64_t>{0}); }
  void send() {
    const std::vector<int64_t> parts(size_, sum_N_.numel());
    ours_->exchange(gradient_, parts, received_RN_, parts)->wait();
  }
  void add() { add_in_order(sum_N_, received_RN_, /*fresh=*/true); }
  void gloo() { group_->_reduce_scatter_base(gloo_sum_N_, gradient_)->wait(); }
  void check() const {
    TORCH_CHECK(sum_N_.equal(gloo_sum_N_.to(at::kFloat)), "the two sums differ");
    TORCH_CHECK(sum_N_.abs().sum().item<double>() > 0, "the sums are zero");
  }

 private:
  int64_t size_;
  RankGroup group_;
  std::unique_ptr<C10dCommunicator> ours_;
  at::Tensor gradient_, received_RN_, sum_N_, gloo_sum_N_;
};

double milliseconds(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 3 || (arguments[0] != "float" && arguments[0] != "bf16"))
    throw UserError("usage: scripts/ranks.sh RANKS bench_exchange float|bf16 BYTES ROUNDS");
  const at::ScalarType type = arguments[0] == "bf16" ? at::kBFloat16 : at::kFloat;
  const World world = world_from([](const char* name) { return std::getenv(name); });
  const int64_t bytes = std::stoll(arguments[1]), rounds = std::stoll(arguments[2]);
  install_cpu_allocator();
  at::set_num_threads(1);
  Exchange exchange(world, bytes / static_cast<int64_t>(c10::elementSize(type)) / world.size * world.size,
                    type);
  nlohmann::json times;
  for (int64_t round = -1; round < rounds; ++round) {  // the first warms up
    exchange.wait_for_all();
    const double sent = milliseconds([&] { exchange.send(); });
    const double added = milliseconds([&] { exchange.add(); });
    exchange.wait_for_all();
    const double gloo = milliseconds([&] { exchange.gloo(); });
    exchange.check();
    if (round < 0) continue;
    times["sent_ms"].push_back(sent);
    times["ordered_ms"].push_back(sent + added);
    times["gloo_ms"].push_back(gloo);
  }
  if (world.rank == 0) std::cout << times.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace moelab

int main(int argc, char** argv) {
  try {
    return moelab::run({argv + 1, argv + argc});
  } catch (const moelab::UserError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "bench_exchange: " << error.what() << "\n";
    return 1;
  }
}
