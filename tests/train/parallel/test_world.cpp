#include <gtest/gtest.h>

#include <map>

#include "moe/settings/error.h"
#include "train/parallel/world.h"

namespace moelab {
namespace {

World world_of(const std::map<std::string, std::string>& variables) {
  return world_from([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const std::map<std::string, std::string>& variables) {
  try {
    world_of(variables);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(World, IsOneRankWithoutVariables) {
  const World world = world_of({});
  EXPECT_TRUE(world.alone());
  EXPECT_EQ(world.rank, 0);
  // Left over in a shell, they say nothing without WORLD_SIZE.
  EXPECT_TRUE(world_of({{"RANK", "3"}, {"MASTER_PORT", "1"}}).alone());
}

TEST(World, IsWhatTorchrunSays) {
  const World world = world_of({{"RANK", "5"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"MASTER_ADDR", "node7"},
                                {"MASTER_PORT", "29400"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(world.rank, 5);
  EXPECT_EQ(world.size, 8);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 4);
  EXPECT_EQ(world.address, "node7");
  EXPECT_EQ(world.port, 29400);
  EXPECT_EQ(world.attempt, 2);
  EXPECT_TRUE(world.agent_serves_store);
}

TEST(World, RefusesWhatCannotBe) {
  EXPECT_EQ(error_of({{"WORLD_SIZE", "4"}}),
            "WORLD_SIZE=4 without RANK: start the ranks with torchrun or scripts/ranks.sh");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "4"}, {"RANK", "4"}}), "RANK=4: there are 4 ranks, numbered from 0");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
            "LOCAL_RANK=2: there are 2 ranks, numbered from 0");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "two"}}), "WORLD_SIZE=two: a number of at least 0 is expected");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}, {"RANK", "-1"}}), "RANK=-1: a number of at least 0 is expected");
}

TEST(World, ARankHasTheGpuOfItsNumber) {
  World world{.rank = 5, .size = 8, .local_rank = 1, .local_size = 4};
  EXPECT_EQ(gpu_of(world, 4), c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(gpu_of({}, 2), c10::Device(c10::kCUDA, 0));
  try {
    gpu_of(world, 1);
    FAIL() << "two ranks on one GPU";
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "run.device=cuda: 4 ranks are on this machine, and 1 GPU is visible; each needs one of its own: "
        "start 1, or let each see all GPUs (CUDA_VISIBLE_DEVICES)");
  }
}

}  // namespace
}  // namespace moelab
