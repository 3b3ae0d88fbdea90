#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include "train/io/serial_worker.h"

namespace moelab {
namespace {

TEST(SerialWorker, RunsTasksInTheirOrder) {
  std::vector<int> order;
  std::vector<std::shared_future<void>> done;
  SerialWorker worker;
  for (int i = 0; i < 100; ++i) done.push_back(worker.post([&order, i] { order.push_back(i); }));
  for (const auto& one : done) one.get();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(SerialWorker, WhatATaskHoldsIsGoneWhenItIsDone) {
  SerialWorker worker;
  auto held = std::make_shared<int>(1);
  worker.post([held] {}).get();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(SerialWorker, NoMoreThanSoManyWait) {
  std::promise<void> gate;
  std::atomic<int> posted = 0;
  SerialWorker worker;
  std::thread poster([&] {
    const std::shared_future<void> open = gate.get_future().share();
    for (int i = 0; i < 5; ++i) {
      worker.post([open] { open.wait(); }, 2);
      ++posted;
    }
  });
  while (posted < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(posted, 2);
  worker.post([] {});  // without a limit it does not wait
  gate.set_value();
  poster.join();
  EXPECT_EQ(posted, 5);
}

TEST(SerialWorker, AFailureIsThrownByItsFutureAndByEveryLaterCall) {
  SerialWorker worker;
  const auto failed = worker.post([] { throw std::runtime_error("full"); });
  EXPECT_THROW(failed.get(), std::runtime_error);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(worker.post([] {}), std::runtime_error);
}

TEST(SerialWorker, ItsEndWaitsForAllTasks) {
  int done = 0;
  {
    SerialWorker worker;
    for (int i = 0; i < 10; ++i) worker.post([&done] { ++done; });
  }
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace moelab
