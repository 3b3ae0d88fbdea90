#include "tests/emulator/streams.h"

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

#include "tests/emulator/capture.h"
#include "tests/emulator/fibers.h"

using namespace moelab::emulator;

// What CUDA's names stand for: a stream's number of tasks so far, and those that are not done yet, oldest
// first; an event, which is a number of a stream's tasks.
struct CUstream_st {
  uint64_t posted = 0;
  std::deque<std::function<void()>> waiting;

  uint64_t done() const { return posted - waiting.size(); }
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  uint64_t tasks = 0;
};

namespace {

// Taken again where a task that is done lets memory go, which waits for the device.
std::recursive_mutex& mutex() {
  static std::recursive_mutex& one = *new std::recursive_mutex;  // streams are used until the process ends
  return one;
}
std::deque<CUstream_st>& streams() {
  static std::deque<CUstream_st>& all = *new std::deque<CUstream_st>;
  return all;
}

// Under the mutex, as all below. A task may itself wait for another stream's.
void run_until(CUstream_st* stream, uint64_t tasks) {
  while (stream != nullptr && stream->done() < tasks) {
    const auto next = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    next();
  }
}
void post(CUstream_st* stream, std::function<void()> work) {
  stream->waiting.push_back(std::move(work));
  ++stream->posted;
}

// The default streams have no object, and no task that is not done.
bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

cudaError_t waited() { return capturing() ? cudaErrorStreamCaptureUnsupported : take_error(); }

}  // namespace

namespace moelab::emulator {

void put_off(cudaStream_t stream, std::function<void()> work) {
  if (is_default(stream)) return work();
  const std::lock_guard lock(mutex());
  post(stream, std::move(work));
}

void catch_up(cudaStream_t stream) {
  if (is_default(stream)) return;
  const std::lock_guard lock(mutex());
  run_until(stream, stream->posted);
}

void catch_up_all() {
  const std::lock_guard lock(mutex());
  for (CUstream_st& stream : streams()) run_until(&stream, stream.posted);
}

}  // namespace moelab::emulator

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::lock_guard lock(mutex());
  *stream = &streams().emplace_back();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!capturing()) catch_up(stream);
  return waited();
}
cudaError_t cudaDeviceSynchronize() {
  if (!capturing()) catch_up_all();
  return waited();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(mutex());
  return is_default(stream) || stream->waiting.empty() ? cudaSuccess : cudaErrorNotReady;
}
// In a capture work is recorded in the order in which it may be done, so that nothing has to wait.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex());
  if (capturing()) return cudaSuccess;
  const CUevent_st there = *event;
  if (is_default(stream)) {
    run_until(there.stream, there.tasks);
  } else if (there.stream != stream) {
    post(stream, [there] { run_until(there.stream, there.tasks); });
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex());
  *event = is_default(stream) ? CUevent_st{} : CUevent_st{stream, stream->posted};
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(mutex());
  return event->stream == nullptr || event->stream->done() >= event->tasks ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  {
    const std::lock_guard lock(mutex());
    if (!capturing()) run_until(event->stream, event->tasks);
  }
  return waited();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

}  // extern "C"
