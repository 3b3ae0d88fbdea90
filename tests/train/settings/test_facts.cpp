#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "train/settings/convert.h"
#include "train/settings/facts/placement.h"
#include "train/settings/facts/precision.h"
#include "train/settings/facts/storage.h"
#include "train/settings/facts/update_rule.h"

// Checks the techniques' facts against the papers.
namespace moelab {
namespace {

template <class Enum>
std::vector<Enum> all_of() {
  std::vector<Enum> values;
  for (size_t i = 0; i < enum_names(Enum{}).size(); ++i) values.push_back(static_cast<Enum>(i));
  return values;
}

TEST(UpdateRuleFacts, EveryNameHasARule) {
  for (const auto name : all_of<OptimizerName>()) {
    const UpdateRuleFacts& rule = update_rule_facts({.name = name});
    EXPECT_FALSE(rule.formula().empty()) << value_text(name);
    EXPECT_EQ(rule.row().has_value(), name != OptimizerName::adamw) << value_text(name);
  }
}

// For a matrix, by the papers' layouts: two moments of 4 bytes; of 1 byte with a 4-byte scale per 256; and of
// 1 byte with a 2-byte scale per 32, plus a 1-byte correction. Planner and table once had 3.03 for the last
// one.
TEST(UpdateRuleFacts, BytesAParameterFollowFromTheLayout) {
  const auto bytes = [](OptimizerName name) {
    return update_rule_facts({.name = name}).bytes_per_parameter(true);
  };
  EXPECT_EQ(bytes(OptimizerName::adamw), 8);
  EXPECT_EQ(bytes(OptimizerName::adam8bit), 2 * (1 + 4.0 / 256));
  EXPECT_EQ(bytes(OptimizerName::adamw_compact), 3.125);
  EXPECT_EQ(update_rule_facts({.state = OptimizerState::bf16}).bytes_per_parameter(true), 4);
}

TEST(UpdateRuleFacts, TextsSayTheLayoutsBytes) {
  const auto formula = [](OptimizerName name) { return update_rule_facts({.name = name}).formula(); };
  EXPECT_EQ(formula(OptimizerName::adamw), "8 P (m in fp32, v in fp32)");
  EXPECT_EQ(formula(OptimizerName::adamw_compact),
            "3.125 P (m in 8 bits, v in 8 bits, correction in 8 bits, and scales)");
  EXPECT_EQ(formula(OptimizerName::adam_mini),
            "4 P (m in fp32), and v in fp32 for each head, output neuron or expert row");
  EXPECT_EQ(formula(OptimizerName::muon),
            "4 P (m in fp32); of embedding, head, norms and routers 8 P (m in fp32, v in fp32)");
  EXPECT_EQ(update_rule_facts({.name = OptimizerName::adam8bit}).row()->bytes,
            "2.03125 P of moments for 8 P");
}

// 400 bytes are 100 elements of fp32 or 200 of bf16; in 8 bits, a byte each plus a 64th of that for scales.
TEST(StorageFacts, BytesLieInOneHomeAndCrossTheBusTwice) {
  for (const auto storage : all_of<ActivationStorage>()) {
    const std::string name = value_text(storage);
    EXPECT_EQ(storage_facts(storage).name, storage) << name << " has no entry";
    for (const auto& [compute, elements] :
         {std::pair{ComputePrecision::fp32, 100.0}, {ComputePrecision::bf16, 200.0}}) {
      Settings s;
      s.activations.storage = storage;
      s.precision.compute = compute;
      const bool coded = name.find('8') != std::string::npos;
      const double bytes = coded ? elements * (1 + 1.0 / 64) : 400;
      const Home home = name.ends_with("host")   ? Home::host
                        : name.ends_with("nvme") ? Home::nvme
                                                 : Home::device;
      double all = 0, moved = 0, decoded = 0;
      for (const Home one : {Home::device, Home::host, Home::nvme}) all += stored_bytes(s, 400, one);
      EXPECT_DOUBLE_EQ(stored_bytes(s, 400, home), bytes) << name;
      EXPECT_DOUBLE_EQ(all, bytes) << name;
      for (const Cost& cost : storage_costs(s, 400))
        (cost.term.ends_with("_bytes") ? moved : decoded) += cost.amount;
      EXPECT_DOUBLE_EQ(moved, home == Home::device ? 0 : 2 * bytes) << name;
      EXPECT_DOUBLE_EQ(decoded, coded ? elements : 0) << name;
    }
  }
}

}  // namespace
}  // namespace moelab
