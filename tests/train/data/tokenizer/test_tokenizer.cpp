#include "train/data/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "moe/settings/error.h"
#include "tests/temporary_folder.h"
#include "tests/train/data/tokenizer/json.h"
#include "train/data/tokenizer/utf8.h"

namespace moelab {
namespace {
namespace fs = std::filesystem;

// Single bytes, tokens of several characters, tokens that end within a character, and a special token.
Tokenizer small_tokenizer() {
  nlohmann::json file = base_tokenizer();
  const auto merge = [&](const std::string& left, const std::string& right) {
    file["model"]["merges"].push_back({left, right});
    file["model"]["vocab"][left + right] = file["model"]["vocab"].size();
  };
  merge("h", "e");   // 256
  merge("Ã", "©");   // 257: é
  merge("ð", "Ł");   // 258: F0 9F, the first half of an emoji
  merge("ðŁ", "ĺ");  // 259: F0 9F 98
  merge("he", "Ã");  // 260: "he" and the first byte of é
  file["added_tokens"].push_back({{"id", 261}, {"content", "<end>"}, {"special", true}});
  const TemporaryFolder folder;
  folder.write("tokenizer.json", file.dump());
  return Tokenizer::load(folder.path());
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  StreamingDecoder decoder(tokenizer);
  std::string text;
  for (const int64_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(piece, replace_broken_utf8(piece)) << "a piece that is no UTF-8";
    text += piece;
  }
  return text + decoder.finish();
}

TEST(Tokenizer, EncodesAndDecodes) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 262);
  const std::vector<int64_t> ids{256, 257, 261, 0};
  EXPECT_EQ(tokenizer.encode("heé<end>!"), ids);
  EXPECT_EQ(tokenizer.decode(ids), "heé!");
  EXPECT_EQ(tokenizer.encode(""), std::vector<int64_t>{});
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, IdsOfNoTokenGiveNothing) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>{256, -1, 262, INT64_MAX, INT64_MIN, 0}), "he!");
}

TEST(Tokenizer, BrokenTextIsEncodedAsItsReplacement) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.encode("a\xFFz\xF0\x9F\x98"), tokenizer.encode("a\uFFFDz\uFFFD"));
}

TEST(Tokenizer, TakesTheFileAsWellAsItsFolder) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", base_tokenizer().dump());
  EXPECT_EQ(Tokenizer::load(folder.path() / "tokenizer.json").vocab_size(), 256);
  EXPECT_THROW(Tokenizer::load(folder.path() / "other.json"), UserError);
  EXPECT_THROW(Tokenizer::load(folder.path() / "tokenizer.json" / "below"), UserError);
  fs::remove(folder.path() / "tokenizer.json");
  EXPECT_THROW(Tokenizer::load(folder.path()), UserError);
  fs::create_directory(folder.path() / "tokenizer.json");
  EXPECT_THROW(Tokenizer::load(folder.path()), UserError);
}

TEST(StreamingDecoder, HoldsACharacterUntilItIsWhole) {
  StreamingDecoder decoder(small_tokenizer());
  EXPECT_EQ(decoder.push(260), "he");  // and keeps C3
  EXPECT_EQ(decoder.push(0), "\uFFFD!");
  EXPECT_EQ(decoder.push(259), "");
  EXPECT_EQ(decoder.push(261), "");  // special
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(256), "he");
}

// However the ids split characters, the concatenated pieces equal decode()'s result.
TEST(StreamingDecoder, EqualsDecodingAtOnce) {
  const Tokenizer tokenizer = small_tokenizer();
  std::mt19937 random(1);
  std::uniform_int_distribution<int64_t> any(-2, 264), tail(188, 261);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> ids(static_cast<size_t>(round % 40));
    for (int64_t& id : ids) id = round % 2 ? any(random) : tail(random);
    EXPECT_EQ(streamed(tokenizer, ids), tokenizer.decode(ids));
  }
}

// By the table of well-formed sequences (Unicode standard, table 3-7): one U+FFFD for each maximal subpart.
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(replace_broken_utf8("\xF0\x80\x80\x41"), r + r + r + "A");               // overlong
  EXPECT_EQ(replace_broken_utf8("\xE0\x9F\xBF"), r + r + r);                         // overlong
  EXPECT_EQ(replace_broken_utf8("\xC0\xAF\xC1\xBF"), r + r + r + r);                 // overlong
  EXPECT_EQ(replace_broken_utf8("\xED\xA0\x80\xED\x9F\xBF"), r + r + r + "\uD7FF");  // surrogate
  EXPECT_EQ(replace_broken_utf8("\xF4\x8F\xBF\xBF\xF4\x90\x80\x80"),
            "\U0010FFFF" + r + r + r + r);  // too high
  EXPECT_EQ(replace_broken_utf8("\xF5\x80\xFF"), r + r + r);
  EXPECT_EQ(replace_broken_utf8("\xF0\x9F\x98z\xF0\x9F\xE4\xBD"),
            r + "z" + r + r);  // cut short, at the end too
  EXPECT_EQ(replace_broken_utf8(std::string("\0\x7F\xC2\x80", 4)), std::string("\0\x7F\xC2\x80", 4));
}

TEST(Utf8, TakesWhatIsWhole) {
  std::string pending = "a\xC3\xA9\xE4\xBD";
  EXPECT_EQ(take_characters(pending), "aé");
  EXPECT_EQ(pending, "\xE4\xBD");
  pending += "\xA0";
  EXPECT_EQ(take_characters(pending), "\u4F60");
  EXPECT_EQ(pending, "");
  EXPECT_EQ(take_characters(pending), "");
}

}  // namespace
}  // namespace moelab
