#include <cmath>

#include "kernels/memory/block_cache.h"
#include "tests/train/loop/scripted_run.h"

namespace moelab::test {
namespace {

TEST_F(ScriptedRun, TakesEveryStepOnce) {
  loop().run();
  EXPECT_EQ(script_.log, (Log{"step 1 in 8 x 1", "step 2 in 8 x 1", "step 3 in 8 x 1", "step 4 in 8 x 1"}));
  EXPECT_EQ(heard_.step_numbers(), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(heard_.steps.back().tokens, 40);
  EXPECT_EQ(loop().steps(), 4);
  EXPECT_EQ(loop().recovery().recoveries(), 0);
  EXPECT_TRUE(heard_.lines.empty());
}

TEST_F(ScriptedRun, AStepRefusedBeforeItsUpdateIsRepeatedInSmallerBatches) {
  script_.faults = {{1, Fault::refused}, {1, Fault::refused}};
  loop().run();
  EXPECT_EQ(script_.log,
            (Log{"step 1 in 8 x 1", "step 2 in 8 x 1", "abandon", "split 4 x 2", "step 2 in 4 x 2", "abandon",
                 "split 2 x 4", "step 2 in 2 x 4", "step 3 in 2 x 4", "step 4 in 2 x 4"}));
  EXPECT_EQ(updates(), 4);
  EXPECT_EQ(loop().recovery().recoveries(), 2);
  EXPECT_TRUE(loop().state_consistent());
  EXPECT_EQ(loop().settings_now().train.accumulation, 4);
  EXPECT_TRUE(heard_.said("[Step 2]")) << heard_.lines.at(0);
  EXPECT_TRUE(heard_.said("reducing batch size (8 x 1 to 4 x 2), releasing cached memory"));
}

TEST_F(ScriptedRun, ABatchOfOneRowIsTheEndOfRecovery) {
  settings_.train.micro_batch = 1;
  script_.faults = {{2, Fault::refused}};
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_EQ(script_.log.back(), "abandon");
  EXPECT_EQ(loop().steps(), 2);
  EXPECT_TRUE(loop().state_consistent());
  EXPECT_EQ(loop().recovery().symptom().steps, 2);
}

TEST_F(ScriptedRun, WithoutRecoverNothingIsTriedAgain) {
  settings_.memory.recover = false;
  script_.faults = {{1, Fault::refused}};
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_EQ(script_.log, (Log{"step 1 in 8 x 1", "step 2 in 8 x 1", "abandon"}));
  EXPECT_EQ(loop().recovery().recoveries(), 0);
}

// The batch cannot shrink, but repeating may help: another program may have freed its memory by then.
TEST_F(ScriptedRun, StepsInBackwardAreRepeatedAsTheyWereOnce) {
  settings_.optim.in_backward = true;
  script_.faults = {{0, Fault::refused}, {2, Fault::refused}, {2, Fault::refused}};
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_EQ(script_.log, (Log{"step 1 in 8 x 1", "abandon", "step 1 in 8 x 1", "step 2 in 8 x 1",
                              "step 3 in 8 x 1", "abandon", "step 3 in 8 x 1", "abandon"}));
  EXPECT_EQ(loop().recovery().recoveries(), 2);
}

TEST_F(ScriptedRun, EachCheckpointIsSaidOnceToBeSaved) {
  settings_.checkpoint.every = 2;
  settings_.train.steps = 5;
  loop().open_checkpoints();
  loop().run();
  loop().finish_saving(true);
  std::vector<std::string> saved;
  for (const std::string& line : heard_.lines)
    if (line.find("saved") != std::string::npos) saved.push_back(line);
  EXPECT_EQ(saved, (std::vector<std::string>{"[Step 2] saved step-2", "[Step 4] saved step-4",
                                             "[Step 5] saved step-5"}));
}

TEST_F(ScriptedRun, AHalfWrittenUpdateGoesBackToTheLastCheckpoint) {
  settings_.checkpoint.every = 2;
  script_.faults = {{3, Fault::refused_half_written}};
  loop().run();
  EXPECT_EQ(script_.log,
            (Log{"step 1 in 8 x 1", "step 2 in 8 x 1", "save 2", "step 3 in 8 x 1", "step 4 in 8 x 1",
                 "abandon", "restore 2", "step 3 in 8 x 1", "step 4 in 8 x 1", "save 4"}));
  EXPECT_EQ(updates(), 4) << "the half update is gone, and so is that of step 3";
  EXPECT_EQ(heard_.step_numbers(), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(heard_.steps.back().tokens, 40);
  EXPECT_TRUE(heard_.said("going back to the last checkpoint"));
  EXPECT_TRUE(loop().state_consistent());
  EXPECT_EQ(loop().first_step(), 2);
}

TEST_F(ScriptedRun, EachCheckpointIsGoneBackToOnce) {
  settings_.train.steps = 6;
  settings_.checkpoint.every = 2;
  const auto half = Fault::refused_half_written;
  script_.faults = {{3, half}, {4, half}, {5, half}};  // from step 2; from step 4; and from step 4 again
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_EQ(std::count(script_.log.begin(), script_.log.end(), "restore 2"), 1);
  EXPECT_EQ(std::count(script_.log.begin(), script_.log.end(), "restore 4"), 1);
  EXPECT_EQ(loop().recovery().recoveries(), 2);
  EXPECT_EQ(loop().steps(), 5);
  EXPECT_FALSE(loop().state_consistent());
  const auto saves = heard_.saves;
  loop().finish_saving(true);
  EXPECT_EQ(heard_.saves, saves) << "half an update is not saved";
}

TEST_F(ScriptedRun, WithoutRecoverNoCheckpointIsGoneBackTo) {
  settings_.memory.recover = false;
  settings_.checkpoint.every = 2;
  script_.faults = {{3, Fault::refused_half_written}};
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_EQ(script_.log.back(), "abandon");
}

TEST_F(ScriptedRun, AHalfWrittenUpdateWithoutACheckpointIsTheEnd) {
  script_.faults = {{1, Fault::refused_half_written}};
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_FALSE(loop().state_consistent());
  EXPECT_EQ(script_.log.back(), "abandon");
}

TEST_F(ScriptedRun, AStepThatCannotBeAbandonedCountsAsHalfWritten) {
  script_.faults = {{1, Fault::unabandonable}};
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_FALSE(loop().state_consistent());
}

TEST_F(ScriptedRun, AFailingDriveEndsTheRunWithTheStepAbandoned) {
  for (const bool half : {false, true}) {
    loop_.reset();
    script_ = {};
    script_.faults = {{1, half ? Fault::drive_half_written : Fault::drive}};
    EXPECT_THROW(loop().run(), std::runtime_error);
    EXPECT_EQ(script_.log, (Log{"step 1 in 8 x 1", "step 2 in 8 x 1", "abandon"}));
    EXPECT_EQ(loop().state_consistent(), !half);
    EXPECT_EQ(loop().steps(), 1);
  }
}

TEST_F(ScriptedRun, AnEvaluationThatIsRefusedGoesOnInSmallerBatches) {
  settings_.train.steps = 4;
  settings_.eval.every = 2;
  settings_.eval.batches = 3;
  settings_.eval.micro_batch = 8;
  script_.largest_evaluation = 3;
  loop().run();
  EXPECT_EQ(loop().evaluate(), 2);
  EXPECT_EQ(script_.log, (Log{"step 1 in 8 x 1", "step 2 in 8 x 1", "evaluate 24 windows by 8",
                              "evaluate 24 windows by 4", "evaluate 24 windows by 2", "step 3 in 8 x 1",
                              "step 4 in 8 x 1", "evaluate 24 windows by 2"}));
  EXPECT_TRUE(heard_.said("reducing evaluation batch (8 to 4)"));
  EXPECT_TRUE(heard_.said("reducing evaluation batch (4 to 2)"));
  EXPECT_EQ(loop().recovery().recoveries(), 2);
  EXPECT_EQ(heard_.evaluations, 2);
  EXPECT_TRUE(std::isnan(heard_.steps.at(0).held_out_loss));
  EXPECT_EQ(heard_.steps.at(1).held_out_loss, 2);
  EXPECT_TRUE(std::isnan(heard_.steps.at(3).held_out_loss)) << "the last one is taken at the end";
  EXPECT_EQ(loop().settings_now().eval.micro_batch, 2);
}

TEST_F(ScriptedRun, AnEvaluationOfOneRowThatIsRefusedIsTheEnd) {
  settings_.eval.every = 1;
  settings_.eval.batches = 1;
  settings_.eval.micro_batch = 2;
  script_.largest_evaluation = 0;
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_TRUE(loop().recovery().symptom().evaluating);
  EXPECT_EQ(loop().recovery().recoveries(), 1);
  EXPECT_TRUE(loop().state_consistent());
}

TEST_F(ScriptedRun, SamplesThatAreRefusedGoOnFewerAtATime) {
  settings_.sample.every = 3;
  script_.largest_samples = 1;
  loop().run();
  EXPECT_EQ(script_.log,
            (Log{"step 1 in 8 x 1", "step 2 in 8 x 1", "step 3 in 8 x 1", "samples of step 3 by 4",
                 "samples of step 3 by 2", "samples of step 3 by 1", "step 4 in 8 x 1"}));
  EXPECT_TRUE(heard_.said("reducing samples at a time (4 to 2)"));
  EXPECT_EQ(loop().recovery().recoveries(), 2);
}

TEST_F(ScriptedRun, OneSampleThatIsRefusedIsTheEnd) {
  settings_.sample.every = 1;
  script_.largest_samples = 0;
  EXPECT_THROW(loop().run(), c10::OutOfMemoryError);
  EXPECT_EQ(script_.log.back(), "samples of step 1 by 1");
  EXPECT_EQ(loop().recovery().recoveries(), 2);
}

TEST_F(ScriptedRun, AStopLeavesTheStepThatItInterruptsUncounted) {
  script_.stop_in = 2;
  loop().run();
  EXPECT_EQ(script_.log, (Log{"step 1 in 8 x 1", "step 2 in 8 x 1", "step 3 in 8 x 1"}));
  EXPECT_EQ(loop().steps(), 2);
  EXPECT_EQ(heard_.step_numbers(), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(loop().state_consistent());
  loop().finish_saving(true);
  EXPECT_EQ(script_.log.back(), "save 2");
  EXPECT_TRUE(loop().saved());
  loop().run();
  EXPECT_EQ(script_.log.back(), "save 2") << "a run that is stopped takes no step";
}

TEST_F(ScriptedRun, AResumedRunGoesOnWhereItsCheckpointEnds) {
  settings_.checkpoint.every = 2;
  script_.stop_in = 3;
  loop().run();
  loop().finish_saving(false);
  loop_.reset();
  const LoadedCheckpoint checkpoint = load_latest(settings_.checkpoint.dir);
  script_ = {};
  loop().resume(checkpoint);
  EXPECT_EQ(loop().first_step(), 2);
  loop().run();
  EXPECT_EQ(script_.log, (Log{"restore 2", "step 3 in 8 x 1", "step 4 in 8 x 1", "save 4"}));
  EXPECT_EQ(updates(), 4);
  EXPECT_EQ(heard_.steps.back().tokens, 40);
}

TEST_F(ScriptedRun, AnEvaluationCutOffByAStopIsMadeUpOnce) {
  settings_.eval.every = 2;
  settings_.eval.batches = 1;
  script_.stop_in_evaluation = true;
  loop().run();
  EXPECT_TRUE(std::isnan(heard_.steps.back().held_out_loss));
  loop().finish_saving(true);
  for (const bool interrupted : {true, false}) {
    loop_.reset();
    const LoadedCheckpoint checkpoint = load_latest(settings_.checkpoint.dir);
    script_ = {};
    script_.stop_in_evaluation = interrupted;
    loop().resume(checkpoint);
    loop().run();
    loop().finish_saving(true);
    EXPECT_EQ(heard_.made_up, interrupted ? std::vector<int64_t>{} : std::vector<int64_t>{2});
  }
  EXPECT_EQ(script_.log[1], "evaluate 8 windows by 8");
  EXPECT_EQ(loop().steps(), 4);
  loop_.reset();
  const LoadedCheckpoint last = load_latest(settings_.checkpoint.dir);
  EXPECT_FALSE(last.state.evaluation_due);
}

// A block of host memory that was freed stays mapped for the next request, until the cache is emptied.
TEST_F(ScriptedRun, EmptyCacheEveryGivesFreedMemoryBack) {
  install_allocators();
  const auto kept_after_a_run = [&](int64_t empty_cache_every) {
    at::empty({int64_t{32} << 20}, at::kByte);
    EXPECT_GE(cpu_blocks().mapped() - cpu_blocks().used(), size_t{32} << 20);
    settings_.memory.empty_cache_every = empty_cache_every;
    loop_.reset();
    loop().run();
    return cpu_blocks().mapped() - cpu_blocks().used();
  };
  EXPECT_GE(kept_after_a_run(0), size_t{32} << 20);
  EXPECT_EQ(kept_after_a_run(4), 0U);
}

}  // namespace
}  // namespace moelab::test
