#pragma once
#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"

namespace moelab {

// Every test of this folder runs on our allocators, and starts with no limit and no refusal.
class WithAllocators : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_allocators(); }
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

 private:
  static void clear() {
    for (Home home : {Home::device, Home::host, Home::nvme}) {
      for (Ledger* ledger : {&cpu_ledger(home), &meta_ledger(home)}) {
        ledger->set_limit(0);
        ledger->clear_refused();
        ledger->enter_phase(Phase::init);
        ledger->reset_peaks();
      }
    }
  }
};

inline int64_t of(const KindBytes& bytes, Kind kind) { return bytes[static_cast<size_t>(kind)]; }

}  // namespace moelab
