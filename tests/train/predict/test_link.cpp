#include "train/predict/link.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/user_error.h"

namespace moelab {
namespace {

using Json = nlohmann::json;

std::string mistake(const std::string& link) {
  return user_error([&] { find_link(link); });
}

TEST(Link, NamesHaveTheRatesOfTheirStandards) {
  EXPECT_DOUBLE_EQ(1 / find_link("pcie4").seconds_per_byte, 31.5e9);
  EXPECT_DOUBLE_EQ(1 / find_link("nvlink4").seconds_per_byte, 450e9);
  for (const char* network : {"1Gbit", "10Gbit", "25Gbit", "100Gbit", "400Gbit"})
    EXPECT_NEAR(8 / find_link(network).seconds_per_byte, std::stod(network) * 1e9, 1) << network;
  for (const std::string& name : link_names()) {
    EXPECT_FALSE(find_link(name).about.empty()) << name;
    EXPECT_GT(find_link(name).latency, 0) << name;
  }
}

TEST(Link, ARateIsANetworkLikeTheNearest) {
  const Link slow = find_link("500Mbit"), fast = find_link("200Gbit");
  EXPECT_DOUBLE_EQ(slow.seconds_per_byte, 8 / 500e6);
  EXPECT_DOUBLE_EQ(fast.seconds_per_byte, 8 / 200e9);
  EXPECT_EQ(slow.latency, find_link("1Gbit").latency);
  EXPECT_LT(fast.latency, slow.latency);
  EXPECT_EQ(slow.name, "500Mbit");
}

TEST(Link, MistakesSayWhatWouldBeRight) {
  EXPECT_NE(mistake("nvlink").find("did you mean nvlink"), std::string::npos);
  for (const char* wrong : {"", "fast", "0Gbit", "-1Gbit", "10", "10GB", "nanGbit", "infGbit", "10 Gbit"}) {
    EXPECT_NE(mistake(wrong).find("give a rate such as 25Gbit or 500Mbit, or one of "), std::string::npos)
        << wrong;
    EXPECT_NE(mistake(wrong).find("pcie4"), std::string::npos) << wrong;
  }
  const auto parsed = [](const Json& link) {
    return user_error([&] { parse_links(Json{{"schema", 1}, {"links", {{"wire", link}}}}.dump()); });
  };
  EXPECT_EQ(parsed({{"microseconds", 1}}),
            "devices.json: link wire: gigabytes_per_second is missing or not above 0");
  EXPECT_EQ(parsed({{"gigabytes_per_second", 2}, {"microseconds", -1}}),
            "devices.json: link wire: microseconds is missing or not above 0");
}

}  // namespace
}  // namespace moelab
