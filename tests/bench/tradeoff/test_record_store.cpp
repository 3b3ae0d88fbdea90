#include "bench/tradeoff/record_store.h"

#include <gtest/gtest.h>

#include <fstream>

#include "bench/tradeoff/outcome.h"
#include "tests/temporary_folder.h"
#include "tests/user_error.h"

namespace moelab::tradeoff {
namespace {

Json record(const std::string& name, int64_t round, int exit_code = 0) {
  return {{"schema", 1},         {"case", name},
          {"round", round},      {"settings_hash", "abc"},
          {"commit", "c0de"},    {"machine", {{"cpu", "x"}}},
          {"wall_seconds", 1.5}, {"exit_code", exit_code}};
}

RunKey key(const std::string& name, int64_t round) {
  return {"", name, round, "abc", "c0de", R"({"cpu":"x"})"};
}

class Store : public testing::Test {
 protected:
  std::filesystem::path path() const { return scratch_.path() / "deep" / "records.jsonl"; }
  void write(const std::string& text) const {
    std::filesystem::create_directories(path().parent_path());
    std::ofstream(path(), std::ios::binary) << text;
  }
  TemporaryFolder scratch_;
};

TEST_F(Store, WhatWasAppendedIsDoneWhenReadAgain) {
  {
    RecordStore store(path());
    EXPECT_FALSE(store.has(key("a", 1)));
    store.append(record("a", 1));
    store.append(record("b", 1, 139));
    EXPECT_TRUE(store.has(key("a", 1)));
  }
  RecordStore again(path());
  EXPECT_EQ(again.size(), 2u);
  EXPECT_TRUE(again.has(key("a", 1)));
  EXPECT_TRUE(again.has(key("b", 1))) << "a crash is a result";
  EXPECT_FALSE(again.has(key("a", 2)));
  Json of_plan = record("c", 1);
  of_plan["sweep"] = "core";
  again.append(of_plan);
  EXPECT_FALSE(again.has(key("c", 1)));
  EXPECT_TRUE(again.has({"core", "c", 1, "abc", "c0de", R"({"cpu":"x"})"}));
  EXPECT_EQ(again.seconds("a", "abc"), 1.5);
  EXPECT_FALSE(again.seconds("a", "abd"));
}

TEST_F(Store, AnyPartOfTheKeyMakesAnotherRun) {
  RecordStore store(path());
  store.append(record("a", 1));
  for (const RunKey& other : {RunKey{"", "b", 1, "abc", "c0de", R"({"cpu":"x"})"},
                              {"", "a", 2, "abc", "c0de", R"({"cpu":"x"})"},
                              {"", "a", 1, "abd", "c0de", R"({"cpu":"x"})"},
                              {"", "a", 1, "abc", "c0df", R"({"cpu":"x"})"},
                              {"", "a", 1, "abc", "c0de", R"({"cpu":"y"})"},
                              {"core", "a", 1, "abc", "c0de", R"({"cpu":"x"})"}})
    EXPECT_FALSE(store.has(other));
}

TEST_F(Store, TheTimeOfAStepLeavesTheWarmUpOut) {
  Json run = record("a", 1);
  run["status"] = "ok";
  run["steps"] = Json::array();
  for (const double ms : {90.0, 80.0, 5.0, 9.0, 7.0, 6.0})  // two of six are the warm-up
    run["steps"].push_back({1, 64, 5.5, ms});
  EXPECT_EQ(step_ms(run), 6.5);
  RecordStore store(path());
  store.append(run);
  EXPECT_EQ(store.step_ms(key("a", 1)), 6.5);
  EXPECT_FALSE(store.step_ms(key("a", 2)));
  run["status"] = "crash";
  EXPECT_FALSE(step_ms(run));
}

TEST_F(Store, AMistakeInSettingsOrDataIsRepeated) {
  RecordStore store(path());
  store.append(record("a", 1, 2));
  EXPECT_FALSE(store.has(key("a", 1)));
}

TEST_F(Store, ATornLastLineIsCutOffWhereverItTore) {
  const std::string first = record("a", 1).dump() + "\n", second = record("b", 1).dump();
  for (size_t length = 1; length <= second.size(); length += 7) {
    write(first + second.substr(0, length));
    RecordStore store(path());
    EXPECT_EQ(store.size(), 1u);
    EXPECT_FALSE(store.has(key("b", 1)));
    store.append(record("b", 1));
    EXPECT_EQ(file_text(path()), first + second + "\n");
  }
}

TEST_F(Store, OtherFilesAreRefusedAndLeftAlone) {
  const std::string good = record("a", 1).dump() + "\n";
  for (const std::string& bad : {"hello\n" + good, good + "{\"case\":1}\n" + good, good + "[1]\n",
                                 good + R"({"schema":2,"case":"a"})" + "\n", good + "{\"schema\":1}\n"}) {
    write(bad + "{torn");
    EXPECT_NE(user_error([&] { RecordStore{path()}; }).find(path().string()), std::string::npos) << bad;
    EXPECT_EQ(file_text(path()), bad + "{torn");
  }
  write(good + R"({"schema":2})" + "\n");
  EXPECT_NE(user_error([&] { RecordStore{path()}; }).find(":2: record of schema 2"), std::string::npos);
}

TEST_F(Store, TwoSweepsDoNotWriteTheSameFile) {
  const RecordStore store(path());
  EXPECT_NE(user_error([&] { RecordStore{path()}; }).find("another sweep"), std::string::npos);
}

TEST_F(Store, InvalidTextIsStoredAllTheSame) {
  Json odd = record("a", 1);
  odd["message"] = "\xff\xfe";
  RecordStore(path()).append(odd);
  EXPECT_TRUE(RecordStore(path()).has(key("a", 1)));
}

}  // namespace
}  // namespace moelab::tradeoff
