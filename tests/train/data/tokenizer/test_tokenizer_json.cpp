#include "train/data/tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <functional>

#include "moe/settings/error.h"
#include "tests/train/data/tokenizer/json.h"

namespace moelab {
namespace {

using nlohmann::json;

// Expects an error of one line that begins with the file's name and contains `words`.
void expect_refused(const std::string& text, const std::string& words) {
  try {
    parse_tokenizer(text, "x/tokenizer.json");
    ADD_FAILURE() << "taken; it should be refused for: " << words;
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("x/tokenizer.json: ")) << message;
    EXPECT_TRUE(message.find(words) != std::string::npos) << message << "\n  lacks: " << words;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 250U) << message;
  }
}

void expect_refused_with(const char* pointer, const json& value, const std::string& words) {
  json file = base_tokenizer();
  file[json::json_pointer(pointer)] = value;
  expect_refused(file.dump(), words);
}

json added(int64_t id, const std::string& content, const json& more = json::object()) {
  json token{{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  token.update(more);
  return token;
}

TEST(TokenizerJson, RefusesWhatIsNotImplementedByName) {
  expect_refused_with("/normalizer", {{"type", "NFC"}}, "normalizer \"NFC\" is not supported");
  expect_refused_with("/pre_tokenizer", {{"type", "Sequence"}},
                      "pre_tokenizer \"Sequence\" is not supported");
  expect_refused_with("/pre_tokenizer", nullptr, "pre_tokenizer is null");
  expect_refused_with("/decoder", {{"type", "Metaspace"}}, "decoder \"Metaspace\" is not supported");
  expect_refused_with("/decoder", nullptr, "decoder is null");
  expect_refused_with("/model/type", "WordPiece", "model \"WordPiece\" is not supported; only \"BPE\" is");
  expect_refused_with("/model/dropout", 0.1, "dropout 0.1");
  expect_refused_with("/model/unk_token", "<unk>", "unk_token \"<unk>\"");
  expect_refused_with("/model/continuing_subword_prefix", "##", "continuing_subword_prefix \"##\"");
  expect_refused_with("/model/end_of_word_suffix", "</w>", "end_of_word_suffix \"</w>\"");
  expect_refused_with("/model/byte_fallback", true, "byte_fallback true");
  expect_refused_with("/model/ignore_merges", true, "ignore_merges true");
  for (const char* name : {"single_word", "lstrip", "rstrip"}) {
    expect_refused_with("/added_tokens", json::array({added(256, "<end>", {{name, true}})}),
                        std::string(name) + " of");
  }
}

TEST(TokenizerJson, RefusesIdsThatMeanNothing) {
  for (const json& id :
       {json(-1), json(1 << 20), json(1ULL << 32), json(UINT64_MAX), json(1.5), json("1"), json()}) {
    expect_refused_with("/model/vocab/a", id, "the id of \"a\" is " + id.dump());
    expect_refused_with("/added_tokens", json::array({added(0, "<end>", {{"id", id}})}),
                        "the id of \"<end>\"");
  }
  expect_refused_with("/model/vocab/a", 3, "two tokens have the id 3");
  expect_refused_with("/added_tokens", json::array({added(3, "<end>")}),
                      "\"<end>\" has the id 3, where 256 is next");
  expect_refused_with("/added_tokens", json::array({added(257, "<end>")}),
                      "has the id 257, where 256 is next");
  expect_refused_with("/added_tokens", json::array({added(5, "!")}), "\"!\" has the id 5, where 0 is next");
  expect_refused_with("/added_tokens", json::array({added(256, "<end>"), added(256, "<end>")}),
                      "where 257 is next");
  expect_refused_with("/added_tokens", json::array({added(0, "!"), added(0, "!")}), "added twice");
  json file = base_tokenizer();
  file["model"]["vocab"]["ab"] = 257;  // there are 257 tokens, so the package gives 257 to the added one too
  file["added_tokens"] = json::array({added(257, "<end>")});
  expect_refused(file.dump(), "two tokens have the id 257");
}

TEST(TokenizerJson, RefusesMergesWithoutTheirTokens) {
  expect_refused_with("/model/merges", json::array({json::array({"a", "b"})}),
                      "merges use \"ab\", which the vocab lacks");
  expect_refused_with("/model/merges", json::array({json::array({"a", "zz"})}), "merges use \"zz\"");
  expect_refused_with("/model/merges", json::array({"a b c"}), "the merge \"a b c\" is not two tokens");
  expect_refused_with("/model/merges", json::array({"ab"}), "is not two tokens");
  expect_refused_with("/model/merges", json::array({json::array({"a"})}), "is not two tokens");
  expect_refused_with("/model/merges", json::array({json::array({"a", 1})}),
                      "half of a merge is 1, not a text");
  expect_refused_with("/model/merges", 7, "no merges");
}

TEST(TokenizerJson, RefusesOtherShapes) {
  expect_refused("", "no JSON at byte");
  expect_refused("[]", "no JSON object");
  expect_refused("{}", "the model is null");
  expect_refused(std::string(100000, '['), "nested deeper than");
  expect_refused("{\"model\": \"\xFF\"}", "no JSON at byte");
  expect_refused_with("/model", 7, "the model is 7");
  expect_refused_with("/model/vocab", json::object(), "no vocab");
  expect_refused_with("/model/vocab", json::array({"a", "b"}), "no vocab");
  expect_refused_with("/added_tokens", 7, "added_tokens is 7");
  expect_refused_with("/added_tokens", json::array({7}), "an added token is 7");
  expect_refused_with("/added_tokens", json::array({added(256, "")}), "an added token is empty");
  expect_refused_with("/added_tokens", json::array({added(256, "<end>", {{"special", 3}})}), "special is 3");
  expect_refused_with("/pre_tokenizer/use_regex", "yes", "use_regex is \"yes\"");
  expect_refused_with("/normalizer", std::string(10000, 'x'), "xxxx…");
}

TEST(TokenizerJson, RefusesEveryTruncation) {
  json file = base_tokenizer();
  file["added_tokens"] = json::array({added(256, "<end>")});
  const std::string text = file.dump();
  parse_tokenizer(text, "whole");
  for (size_t size = 0; size < text.size(); size += size < 200 ? 1 : 13)
    expect_refused(text.substr(0, size), "no JSON");
}

TEST(TokenizerJson, ReadsFilesOfEarlyVersions) {
  json file = base_tokenizer();
  file["model"].erase("type");
  file["model"]["continuing_subword_prefix"] = file["model"]["end_of_word_suffix"] = "";
  file["model"]["vocab"]["ab"] = 256;
  file["model"]["merges"] = json::array({"#version: 0.2", "a b"});
  const BpeModel model = parse_tokenizer(file.dump(), "early");
  EXPECT_TRUE(model.split_words);
  std::vector<int64_t> ids;
  append_word(model, "abc", ids);
  EXPECT_EQ(ids, (std::vector<int64_t>{256, 'c' - '!'}));
}

}  // namespace
}  // namespace moelab
