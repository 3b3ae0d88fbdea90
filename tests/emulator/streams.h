#pragma once
#include <cuda_runtime_api.h>

#include <functional>

// Streams and events. The default stream's work is done at once, and copies on every other stream as late as
// CUDA permits: when something waits for them. An order that nothing asks for then shows: a copy reads memory
// that was written again in the meantime, and memory that is kept for copies piles up. A kernel or one of
// LibTorch's operators is never put off; it is preceded by what its stream has put off.
namespace moelab::emulator {

// `work` is put off, but for work of the default stream.
void put_off(cudaStream_t stream, std::function<void()> work);
// Whether a copy from or to the address may come late: memory of the device, or pinned memory of the host.
bool may_wait(const void* address);
// What the stream has put off is done; of every stream: what all have.
void catch_up(cudaStream_t stream);
void catch_up_all();

}  // namespace moelab::emulator
