#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <set>

// Streams and events. Copies on any stream but the default one are done as late as CUDA permits: when
// something waits for them. An order that nothing asks for then shows: a copy reads memory that was written
// again in the meantime, and memory that is kept for copies piles up. Other work is done at once, behind what
// its stream has put off.
//
// With MOELAB_EMULATOR_LATE=1 all work is put off: kernels, LibTorch's operators and replays of graphs, on
// the default stream too. Some of it is done early, between calls of the runtime; the seed (fibers.h) draws
// which, in any order that CUDA permits. With every fourth seed nothing is early. So a copy that does not
// wait for what it reads shows as well.
namespace moelab::emulator {

bool all_is_late();
void set_stream_seed(uint32_t seed);
// `work` takes its turn in its stream: late, or, on the default stream unless all is late, at once.
void put_off(cudaStream_t stream, std::function<void()> work);
// The same for work that is late only if all is.
void run_in_turn(cudaStream_t stream, std::function<void()> work);
// Whether a copy from or to the address may come late: memory of the device, or pinned memory of the host.
bool may_wait(const void* address);
// The streams that cudaMemcpyAsync was given since the last call of this function, for copies to the device
// or for those to the host.
std::set<cudaStream_t> streams_of_copies(cudaMemcpyKind kind);
// What the stream has put off is done; of every stream: what all have.
void catch_up(cudaStream_t stream);
void catch_up_all();

}  // namespace moelab::emulator
