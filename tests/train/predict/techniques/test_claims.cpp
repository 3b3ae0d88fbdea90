#include "train/predict/techniques/claims.h"

#include <gtest/gtest.h>

#include <set>

#include "moe/settings/error.h"
#include "train/predict/techniques/techniques.h"

namespace moelab {
namespace {

const std::string kGuides = "guides: {g: A guide}\nclaims:\n";

std::string mistake_in_file(const std::string& file) {
  try {
    parse_claims(file);
  } catch (const UserError& error) {
    return error.what();
  }
  return "none";
}

std::string mistake(const std::string& claims) { return mistake_in_file("schema: 1\n" + kGuides + claims); }

TEST(Claims, EveryIdThatATechniqueNamesExists) {
  for (const Technique& technique : techniques()) {
    EXPECT_FALSE(technique.claims.empty()) << technique.name;
    for (const std::string_view id : technique.claims)
      EXPECT_NE(find_claim(id), nullptr) << technique.name << " names " << id;
  }
}

// Figures that other parts of the project rely on, repeated here.
TEST(Claims, KeepTheGuidesFigures) {
  EXPECT_EQ(find_claim("nemo.gradient_checkpointing")->figures["memory_saved_percent"], 50);
  EXPECT_EQ(find_claim("nemo.mixed_precision")->figures["slowdown_percent"], -10);
  EXPECT_EQ(find_claim("vibee.zero_1")->figures["optimizer_gb"], 3.5);
  const auto& flash = find_claim("ava.flash_attention")->figures;
  EXPECT_EQ(flash["of"], "attention memory");
  EXPECT_EQ(flash["speedup_factor"], (nlohmann::ordered_json{2, 4}));
  EXPECT_EQ(flash["on_by_default"], true);
  EXPECT_FALSE(find_claim("ava.cpu_offload")->arithmetic.empty());
  EXPECT_EQ(find_claim("verl.optimizer_offload")->guide, "verl, memory optimization examples");
}

TEST(Claims, AllGuidesAreHeard) {
  std::set<std::string> guides;
  for (const Claim& claim : claims()) guides.insert(claim.guide);
  EXPECT_EQ(guides.size(), 5u);
}

TEST(Claims, MistakesNameTheClaim) {
  EXPECT_EQ(mistake("  - {id: g.a, text: Something.}\n"), "none");
  EXPECT_NE(mistake("  - {id: g.a, text: x}\n  - {id: g.a, text: y}\n").find("g.a: given twice"),
            std::string::npos);
  EXPECT_NE(mistake("  - {id: g.a}\n").find("g.a: no text"), std::string::npos);
  EXPECT_NE(mistake("  - {id: h.a, text: x}\n").find("h.a: "), std::string::npos);
  EXPECT_NE(mistake("  - {id: g.a, text: x, figure: {a: 1}}\n").find("unknown key figure"),
            std::string::npos);
  EXPECT_NE(mistake("  - {id: g.a, text: [}\n").find("claims: "), std::string::npos);
}

TEST(Claims, OtherFilesAreRefused) {
  const std::string claims = kGuides + "  - {id: g.a, text: x}\n";
  EXPECT_EQ(mistake_in_file("schema: 1\n" + claims), "none");
  EXPECT_NE(mistake_in_file("schema: 2\n" + claims).find("schema 1 is expected"), std::string::npos);
  EXPECT_NE(mistake_in_file(claims).find("schema 1 is expected"), std::string::npos);
  EXPECT_NE(mistake_in_file("[]").find("schema 1 is expected"), std::string::npos);
  EXPECT_NE(mistake_in_file("schema: 1\nguide: {}\n" + claims).find("unknown key guide"), std::string::npos);
  EXPECT_NE(mistake("  - {id: g.a, text: x, figures: 3}\n").find("g.a: figures are"), std::string::npos);
}

}  // namespace
}  // namespace moelab
