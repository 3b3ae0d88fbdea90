#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/memory/device_memory.h"
#include "tests/temporary_folder.h"
#include "tests/user_error.h"
#include "train/memory/profile/operator_profile.h"

namespace moelab {
namespace {

class OperatorProfileTest : public testing::Test {
 protected:
  OperatorProfileTest() { install_allocators(); }
  TemporaryFolder folder_;
  const c10::Device cpu_{c10::kCPU};
};

// The peak equals the ledger's, and each block belongs to the innermost operator that is not a factory.
TEST_F(OperatorProfileTest, TheTableIsWhatTheLedgerCounted) {
  const at::Tensor older = at::ones({256, 256});
  reset_peaks(cpu_);
  const int64_t before = device_memory(cpu_).allocated;
  OperatorProfile profile(cpu_);
  at::Tensor product = at::matmul(older, older);
  at::Tensor copy = product.clone();
  at::Tensor own = at::empty({1000});
  {
    const HomeScope host(Home::host);  // not device memory
    at::ones({5000});
  }
  const int64_t peak = device_memory(cpu_).peak;
  copy = at::Tensor();
  const OperatorTable table = profile.finish(folder_.path() / "trace.json");
  EXPECT_EQ(table.peak, peak);
  EXPECT_EQ(table.before, before);
  std::map<std::string, int64_t> held;
  for (const OperatorMemory& op : table.operators) held[op.name] = op.at_peak;
  EXPECT_EQ(held, (std::map<std::string, int64_t>{
                      {"aten::mm", 4 * 256 * 256}, {"aten::clone", 4 * 256 * 256}, {"aten::empty", 4000}}));
  const auto trace = nlohmann::json::parse(std::ifstream(folder_.path() / "trace.json"));
  EXPECT_GT(trace["traceEvents"].size(), 3U);
}

TEST_F(OperatorProfileTest, OneThatIsNotFinishedLeavesNothingBehind) {
  { const OperatorProfile dropped(cpu_); }
  OperatorProfile profile(cpu_);
  EXPECT_EQ(profile.finish(folder_.path() / "trace.json").operators.size(), 0U);
}

TEST_F(OperatorProfileTest, ATraceThatCannotBeWrittenIsToldInOneLine) {
  OperatorProfile profile(cpu_);
  const std::string told = user_error([&] { profile.finish(folder_.path() / "none" / "trace.json"); });
  EXPECT_NE(told.find("cannot write "), std::string::npos) << told;
}

}  // namespace
}  // namespace moelab
