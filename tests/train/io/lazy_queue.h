#pragma once
#include <memory>
#include <vector>

#include "train/io/file_queue.h"

namespace moelab::test {

// Holds requests back and completes the newest first, as a queue may.
struct LazyQueue : FileQueue {
  void submit(const FileRequest& request) override { requests.push_back(request); }
  FileResult wait() override {
    const FileRequest request = requests.back();
    requests.pop_back();
    inner->submit(request);
    return inner->wait();
  }
  std::unique_ptr<FileQueue> inner = make_thread_queue();
  std::vector<FileRequest> requests;
};

}  // namespace moelab::test
