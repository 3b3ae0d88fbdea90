#include "tests/emulator/streams.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <vector>

#include "tests/emulator/capture.h"
#include "tests/emulator/fibers.h"

using namespace moelab::emulator;

// What CUDA's names stand for: a stream's number of tasks so far, and those that are not done yet, oldest
// first; an event, which is a number of a stream's tasks.
struct CUevent_st {
  CUstream_st* stream = nullptr;
  uint64_t tasks = 0;
};
struct CUstream_st {
  struct Task {
    std::function<void()> work;  // empty: it waits for the event
    CUevent_st event;
  };
  uint64_t posted = 0;
  std::deque<Task> waiting;

  uint64_t done() const { return posted - waiting.size(); }
};

namespace {

struct Streams {
  std::recursive_mutex mutex;      // taken again where a task lets memory go, which waits for the device
  std::deque<CUstream_st> all{1};  // the first is the default one
  const bool late = [] {
    const char* const wanted = std::getenv("MOELAB_EMULATOR_LATE");
    return wanted != nullptr && std::strcmp(wanted, "1") == 0;
  }();
  std::minstd_rand random{first_seed()};
  uint32_t early = first_seed() % 4;  // quarters of the tasks that are done before anything waits for them
};
Streams& streams() {
  static Streams& one = *new Streams;  // used until the process ends
  return one;
}

CUstream_st& stream_of(cudaStream_t stream) {
  const bool is_default = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_default ? streams().all.front() : *stream;
}
bool is_default(const CUstream_st& stream) { return &stream == &streams().all.front(); }

// Under the mutex, as all below.
bool is_reached(const CUevent_st& event) {
  return event.stream == nullptr || event.stream->done() >= event.tasks;
}

// What lies before the event is done.
void run_until(const CUevent_st& event) {
  while (!is_reached(event)) {
    if (const CUevent_st before = event.stream->waiting.front().event; !is_reached(before)) {
      run_until(before);
      continue;
    }
    const auto work = std::move(event.stream->waiting.front().work);
    event.stream->waiting.pop_front();
    if (work) work();
  }
}

// Does some of what may be done now.
void do_some_early() {
  Streams& all = streams();
  if (!all.late) return;
  while (all.random() / 7 % 4 < all.early) {
    std::vector<CUstream_st*> ready;
    for (CUstream_st& stream : all.all) {
      if (!stream.waiting.empty() && is_reached(stream.waiting.front().event)) ready.push_back(&stream);
    }
    if (ready.empty()) return;
    CUstream_st* const chosen = ready[all.random() / 7 % ready.size()];
    run_until({chosen, chosen->done() + 1});
  }
}

void post(CUstream_st& stream, CUstream_st::Task task) {
  do_some_early();
  stream.waiting.push_back(std::move(task));
  ++stream.posted;
}

cudaError_t waited() { return capturing() ? cudaErrorStreamCaptureUnsupported : take_error(); }

}  // namespace

namespace moelab::emulator {

bool all_is_late() { return streams().late; }

void set_stream_seed(uint32_t seed) {
  const std::lock_guard lock(streams().mutex);
  streams().random.seed(seed);
  streams().early = seed % 4;
}

void put_off(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(streams().mutex);
  CUstream_st& own = stream_of(stream);
  if (is_default(own) && !all_is_late()) return work();
  post(own, {std::move(work), {}});
}

void run_in_turn(cudaStream_t stream, std::function<void()> work) {
  if (all_is_late()) return put_off(stream, std::move(work));
  catch_up(stream);
  work();
}

void catch_up(cudaStream_t stream) {
  const std::lock_guard lock(streams().mutex);
  CUstream_st& own = stream_of(stream);
  run_until({&own, own.posted});
}

void catch_up_all() {
  const std::lock_guard lock(streams().mutex);
  for (CUstream_st& stream : streams().all) run_until({&stream, stream.posted});
}

}  // namespace moelab::emulator

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::lock_guard lock(streams().mutex);
  *stream = &streams().all.emplace_back();
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
  const std::lock_guard lock(streams().mutex);
  return stream_of(stream).waiting.empty() ? cudaSuccess : cudaErrorNotReady;
}
// In a capture work is recorded in the order in which it may be done, so that nothing has to wait.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(streams().mutex);
  if (capturing()) return cudaSuccess;
  CUstream_st& own = stream_of(stream);
  if (is_default(own) && !all_is_late()) {
    run_until(*event);
  } else if (event->stream != &own) {
    post(own, {{}, *event});
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
  const std::lock_guard lock(streams().mutex);
  CUstream_st& own = stream_of(stream);
  *event = {&own, own.posted};
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(streams().mutex);
  do_some_early();
  return is_reached(*event) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  {
    const std::lock_guard lock(streams().mutex);
    if (!capturing()) run_until(*event);
  }
  return waited();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

}  // extern "C"
