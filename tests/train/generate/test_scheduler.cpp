#include "train/generate/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

namespace moelab {
namespace {

using Part = TextScheduler::Part;

TEST(TextScheduler, ReadsAPromptInPartsAndThenATokenAtATime) {
  TextScheduler scheduler(1, 4);
  scheduler.add(10);
  std::vector<int64_t> tokens;
  std::vector<bool> ends;
  for (int pass = 0; pass < 5; ++pass) {
    const std::vector<Part> parts = scheduler.next();
    ASSERT_EQ(parts.size(), 1u);
    tokens.push_back(parts[0].tokens);
    ends.push_back(parts[0].ends_unread);
    scheduler.advance(parts[0]);
  }
  EXPECT_EQ(tokens, (std::vector<int64_t>{4, 4, 2, 1, 1}));
  EXPECT_EQ(ends, (std::vector<bool>{false, false, true, true, true}));
  scheduler.close(scheduler.next()[0]);
  EXPECT_TRUE(scheduler.next().empty());
}

// A long prompt uses the tokens that the other texts leave, and delays nobody.
TEST(TextScheduler, TextsBeingWrittenComeFirst) {
  TextScheduler scheduler(3, 8);
  for (const int64_t prompt : {100, 3, 2}) scheduler.add(prompt);
  std::vector<Part> parts = scheduler.next();  // 100 alone fills the pass
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].tokens, 8);
  scheduler.close(parts[0]);
  parts = scheduler.next();
  ASSERT_EQ(parts.size(), 2u);
  for (const Part& part : parts) scheduler.advance(part);
  scheduler.add(100);
  parts = scheduler.next();
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ((std::vector{parts[0].text, parts[1].text, parts[2].text}), (std::vector<size_t>{1, 2, 3}));
  EXPECT_EQ((std::vector{parts[0].tokens, parts[1].tokens, parts[2].tokens}),
            (std::vector<int64_t>{1, 1, 6}));
}

// For random texts: the limits on places and tokens per pass hold, the order holds, and every token is read
// once.
TEST(TextScheduler, KeepsItsLimitsWhateverComes) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int64_t places = 1 + random() % 5, budget = 1 + random() % 12;
    TextScheduler scheduler(places, budget);
    std::vector<int64_t> prompts(1 + random() % 9), left;
    for (int64_t& prompt : prompts) {
      prompt = 1 + random() % 20;
      left.push_back(prompt + random() % 6);  // plus the tokens that it will write
      scheduler.add(prompt);
    }
    std::vector<int64_t> read(prompts.size(), 0);
    std::map<size_t, int64_t> place_of;
    size_t closed = 0;
    std::vector<Part> parts;
    for (int pass = 0; !(parts = scheduler.next()).empty(); ++pass) {
      ASSERT_LT(pass, 1000);
      int64_t tokens = 0;
      std::set<int64_t> taken;
      for (const Part& part : parts) {
        EXPECT_GE(part.tokens, 1);
        tokens += part.tokens;
        EXPECT_TRUE(taken.insert(part.place).second) << "two texts in one place";
        EXPECT_TRUE(part.place >= 0 && part.place < places);
        EXPECT_LT(part.text, closed + static_cast<size_t>(places)) << "out of turn";
        EXPECT_EQ(place_of.try_emplace(part.text, part.place).first->second, part.place);
      }
      EXPECT_LE(tokens, budget);
      for (const Part& part : parts) {
        read[part.text] += part.tokens;
        EXPECT_EQ(part.ends_unread, read[part.text] >= prompts[part.text]);
        EXPECT_LE(read[part.text], left[part.text]);
        const bool ends = read[part.text] == left[part.text];
        closed += ends;
        ends ? scheduler.close(part) : scheduler.advance(part);
      }
    }
    EXPECT_EQ(read, left);
  }
}

}  // namespace
}  // namespace moelab
