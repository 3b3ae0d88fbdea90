#include "train/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/user_error.h"
#include "train/checkpoint/hash.h"

namespace moelab {
namespace {

std::string sealed(const std::string& body) {
  return "{\"xxh3_128\":\"" + xxh3_hex(std::as_bytes(std::span(body))) + "\",\"body\":" + body + "}\n";
}

TEST(Manifest, RoundTripsAndIsJson) {
  Manifest manifest;
  manifest.commit = "abc";
  manifest.files["model.safetensors"] = {{12, "h1"}, {{"w", {SafetensorsType::bf16, {2, 3}, "h2"}}}};
  manifest.files["state.json"] = {{3, "h3"}, {}};
  const std::string text = manifest_text(manifest);
  EXPECT_TRUE(nlohmann::json::accept(text));
  const Manifest read = parse_manifest(text, "m");
  EXPECT_EQ(read.commit, "abc");
  ASSERT_EQ(read.files.size(), 2u);
  EXPECT_EQ(read.files.at("model.safetensors").digest, (FileDigest{12, "h1"}));
  EXPECT_EQ(read.files.at("model.safetensors").tensors, manifest.files["model.safetensors"].tensors);
}

// Manifests with a valid checksum, as an attacker could write them.
TEST(Manifest, RefusesForgeries) {
  const std::string head = R"({"format":"moelab-checkpoint","version":1,"commit":"","files":)";
  EXPECT_NO_THROW(parse_manifest(sealed(head + "{}}"), "m"));
  const auto refused = [](const std::string& body) {
    return user_error([&] { parse_manifest(sealed(body), "m"); });
  };
  for (const char* name : {"../x", "/etc/passwd", "..", ".", "", "a/b"}) {
    const std::string file = std::string("{\"") + name + R"(":{"size":1,"xxh3_128":""}}})";
    EXPECT_NE(refused(head + file).find("outside of its folder"), std::string::npos) << name;
  }
  EXPECT_NE(refused(head + R"({"a":{"size":-1}}})").find("m: "), std::string::npos);
  EXPECT_NE(refused(head + R"({"a":{"size":"x","xxh3_128":""}}})").find("m: "), std::string::npos);
  EXPECT_NE(refused(head + R"({"a":{"size":1e68,"xxh3_128":""}}})").find("m: 1e+68 where a count"),
            std::string::npos);
  EXPECT_NE(refused(head + "[]").find("no JSON"), std::string::npos);
  EXPECT_NE(refused(R"({"format":"moelab-checkpoint","version":3})").find("version"), std::string::npos);
  EXPECT_NE(refused("[]").find("m: "), std::string::npos);
  EXPECT_NE(refused(std::string(200, '[') + std::string(200, ']')).find("deeper"), std::string::npos);
  EXPECT_NE(refused(std::string(1'000'000, '[')).find("m: "), std::string::npos);
}

}  // namespace
}  // namespace moelab
