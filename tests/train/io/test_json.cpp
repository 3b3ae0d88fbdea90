#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.h"
#include "tests/user_error.h"
#include "train/io/json_lines.h"
#include "train/io/json_text.h"

namespace moelab {
namespace {

TEST(JsonText, RefusesWhatIsNoJsonAndWhatIsBeyondItsReaders) {
  const auto refusal = [](const std::string& text) {
    return user_error([&] { parse_json(text, "file", 2); });
  };
  EXPECT_EQ(parse_json("[[1e300]]", "file", 2)[0][0], 1e300);
  EXPECT_EQ(refusal("[1,"), "file: no JSON at byte 4");
  EXPECT_EQ(refusal("[[[1]]]"), "file: nested deeper than 2 levels");
  EXPECT_EQ(refusal("[1e999]"), "file: a number is too large for JSON's readers");
}

TEST(JsonText, GivesIntegersOfSixtyFourBitsAlone) {
  EXPECT_EQ(integers_of(parse_json("[9223372036854775807,-9223372036854775808,0]", "file")),
            (std::vector<int64_t>{INT64_MAX, INT64_MIN, 0}));
  for (const std::string other :
       {"9223372036854775808", "1e68", "2.0", "-9223372036854775809", "\"1\"", "null", "true", "[1]"})
    EXPECT_NE(
        user_error([&] { integers_of(parse_json("[" + other + "]", "file")); }).find("where an integer"),
        std::string::npos)
        << other;
  EXPECT_EQ(user_error([] { integers_of(parse_json("{}", "file")); }),
            "no list where one of integers is expected");
}

TEST(JsonText, GivesCountsThatCanBeAdded) {
  EXPECT_EQ(as_count(parse_json("9007199254740992", "file")), int64_t{1} << 53);
  EXPECT_EQ(as_count(nlohmann::ordered_json(int64_t{3})), 3);
  for (const char* other : {"-1", "9007199254740993", "1e3", "\"1\"", "null"})
    EXPECT_NE(user_error([&] { count_of(parse_json(other, "file")); }).find("where a count"),
              std::string::npos)
        << other;
}

// A run that was killed leaves half a line; other hands may leave anything.
TEST(JsonLines, EndAtTheFirstThatIsNoStepUpToTheOneAskedFor) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "metrics.jsonl";
  const auto kept = [&](const std::string& text) {
    std::ofstream(file, std::ios::trunc) << text;
    return json_lines_up_to(file, 2);
  };
  const std::string one = "{\"step\":1}\n", two = "{\"step\":2}\n";
  EXPECT_EQ(kept(one + two + "{\"step\":3}\n"), one + two);
  const std::string deep =
      "{\"step\":2,\"tokens\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}\n";
  for (const std::string& other :
       {std::string("{\"step\":2"), std::string("{\"step\":\"2\"}\n"), std::string("{\"step\":2.5}\n"),
        std::string("{\"step\":-1}\n"), std::string("{\"step\":18446744073709551615}\n"),
        std::string("[2]\n"), std::string("7\n"), std::string("{}\n"), deep}) {
    EXPECT_EQ(kept(one + other + two), one) << other;
    EXPECT_EQ(kept(one + other), one) << other;
    EXPECT_EQ(last_step(file), 1) << other;
  }
}

}  // namespace
}  // namespace moelab
